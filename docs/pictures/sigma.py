"""Draws sigma.png: what a larger noise level gives and takes, from results/.

python docs/pictures/sigma.py
"""

from pathlib import Path

from accuracy_curves import draw_models
from matplotlib.figure import Figure
from shades import HERE, Shades, measured, save_both, title

from sween.report import canvas

SIGMAS = (0.25, 0.5, 1.0)


def draw(shades: Shades) -> Figure:
    runs = [measured(f"cifar10-sween3-gaussian-sigma{sigma:.2f}") for sigma in SIGMAS]
    models = {f"sigma {run.sample.sigma:.2f}": run.models[str(run.ensemble)] for run in runs}
    figure = canvas.new_figure(7.6, 4.0)
    axes = figure.subplots()
    draw_models(axes, models, shades, shades.series, 2.0)
    images, n = len(runs[0].indices), runs[0].sample.n
    title(axes, f"{runs[0].ensemble} on CIFAR-10", f"{images:,} images, n = {n:,}")
    return figure


def main(folder: Path = HERE) -> None:
    save_both(draw, "sigma", folder)


if __name__ == "__main__":
    main()
