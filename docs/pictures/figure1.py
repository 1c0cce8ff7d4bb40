"""Draws figure1.png: the paper's Figure 1 from results/.

python docs/pictures/figure1.py
"""

from pathlib import Path

from accuracy_curves import draw_run
from matplotlib.figure import Figure
from shades import HERE, Shades, measured, save_both, title

from sween.report import canvas

RUNS = [f"cifar10-sween{size}-gaussian-sigma0.50" for size in (3, 6)]


def draw(shades: Shades) -> Figure:
    figure = canvas.new_figure(10.4, 4.4)
    for axes, name in zip(figure.subplots(1, 2, sharey=True), RUNS, strict=True):
        run = measured(name)
        draw_run(axes, run, shades)
        sample = run.sample
        what = f"{len(run.indices):,} images, n = {sample.n:,}, α = {sample.alpha:g}"
        title(axes, f"{run.ensemble}, σ = {sample.sigma:.2f}", what)
    return figure


def main(folder: Path = HERE) -> None:
    save_both(draw, "figure1", folder)


if __name__ == "__main__":
    main()
