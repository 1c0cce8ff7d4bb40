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

BY_SEED = "cifar10-identical-seeds-gaussian-sigma0.50"
BY_NOISE = "cifar10-identical-gaussian-sigma0.50"

EQUAL = "-uniform"
"""Ends the name of an ensemble whose weights are equal."""


def draw(shades: Shades) -> Figure:
    run = measured(BY_SEED)
    figure = canvas.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    draw_run(left, run, shades)
    sample = run.sample
    what = f"{len(run.indices):,} images, n = {sample.n:,}, α = {sample.alpha:g}"
    title(left, f"Eight ResNet-110, σ = {sample.sigma:.2f}", what)
    _draw_sizes(right, run, measured(BY_NOISE), shades)
    return figure


def _draw_sizes(axes: Axes, run: MeasuredRun, noisier: MeasuredRun, shades: Shades) -> None:
    """ACR of the first networks together, by their number."""
    alone = [average_certified_radius(run.models[name]) for name in run.candidates]
    axes.plot(range(1, len(alone) + 1), alone, "o", color=shades.series[0], markersize=5,
              label="network k alone")  # fmt: skip
    for own, ending, label, colour, style in (
        (run, "", "the first k, solved weights", shades.accent, "-"),
        (run, EQUAL, "the first k, equal weights", shades.muted, "--"),
        (noisier, EQUAL, "the same, half with 1.2 times the noise", shades.series[1], ":"),
    ):
        numbers, values = zip(*_by_number(own, ending), strict=True)
        axes.plot(numbers, values, style, color=colour, marker="s", markersize=5, label=label)
    axes.set_xlabel("number of networks k")
    axes.set_ylabel("average certified radius")
    axes.grid(visible=True, axis="y")
    axes.legend(frameon=False, fontsize=9.5, loc="center right", bbox_to_anchor=(1.0, 0.4))
    title(axes, "What each further network adds", "networks that differ in their seed")


def _by_number(run: MeasuredRun, ending: str) -> list[tuple[int, float]]:
    """ACR of the first k networks, whose weights the ending of their name tells, for each k."""
    models = {1: run.candidates[0]}
    for name in run.config.weights:
        equal = run.config.weights.get(f"{name}{EQUAL}")
        if equal is not None:
            models[sum(share > 0 for share in equal)] = f"{name}{ending}"
    return [(k, average_certified_radius(run.models[models[k]])) for k in sorted(models)]


def main(folder: Path = HERE) -> None:
    save_both(draw, "figure3", folder)


if __name__ == "__main__":
    main()
