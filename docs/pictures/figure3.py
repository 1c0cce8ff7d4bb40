"""Draws figure3.png: the paper's Figure 3 from results/, and what each further network adds.

python docs/pictures/figure3.py
"""

from pathlib import Path

from accuracy_curves import draw_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from shades import HERE, Shades, measured, save_both, title

from sween.evaluation import average_certified_radius
from sween.report import MeasuredRun, canvas

RUN = "cifar10-identical-gaussian-sigma0.50"


def draw(shades: Shades) -> Figure:
    run = measured(RUN)
    figure = canvas.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    draw_run(left, run, shades)
    sample = run.sample
    what = f"{len(run.indices):,} images, n = {sample.n:,}, α = {sample.alpha:g}"
    title(left, f"Eight ResNet-110, σ = {sample.sigma:.2f}", what)
    _draw_sizes(right, run, shades)
    return figure


def _draw_sizes(axes: Axes, run: MeasuredRun, shades: Shades) -> None:
    """ACR of the first networks together, by their number."""
    acr = {name: average_certified_radius(rows) for name, rows in run.models.items()}
    alone = [acr[name] for name in run.candidates]
    axes.plot(range(1, len(alone) + 1), alone, "o", color=shades.series[0], markersize=5,
              label="network k alone")  # fmt: skip
    for ending, label, colour, style in (
        ("", "the first k, solved weights", shades.accent, "-"),
        ("-uniform", "the first k, equal weights", shades.muted, "--"),
    ):
        points = [(1, alone[0])]
        for name in run.config.weights:
            equal = run.config.weights.get(f"{name}-uniform")
            if equal is not None:
                points.append((sum(share > 0 for share in equal), acr[f"{name}{ending}"]))
        numbers, values = zip(*sorted(points), strict=True)
        axes.plot(numbers, values, style, color=colour, marker="s", markersize=5, label=label)
    axes.set_xlabel("number of networks k")
    axes.set_ylabel("average certified radius")
    axes.grid(visible=True, axis="y")
    axes.legend(frameon=False, fontsize=9.5, loc="center right")
    title(
        axes, "What each further network adds", "half of them are trained with 1.2 times the noise"
    )


def main(folder: Path = HERE) -> None:
    save_both(draw, "figure3", folder)


if __name__ == "__main__":
    main()
