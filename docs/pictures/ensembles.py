"""Draws ensembles.png: an ensemble's votes against its candidates', and the curves that follow.

python docs/pictures/ensembles.py
"""

from pathlib import Path

import numpy as np
from accuracy_curves import draw_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from shades import HERE, Shades, measured, save_both, title

from sween.records import Certificate
from sween.report import MeasuredRun, canvas

RUN = "cifar10-sween6-gaussian-sigma0.50"
BINS = 12


def draw(shades: Shades) -> Figure:
    run = measured(RUN)
    figure = canvas.new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2)
    _draw_votes(left, run, shades)
    draw_run(right, run, shades)
    sigma, images = run.sample.sigma, len(run.indices)
    title(right, f"{run.ensemble} and its candidates", f"{images:,} images, sigma {sigma:.2f}")
    return figure


def _draw_votes(axes: Axes, run: MeasuredRun, shades: Shades) -> None:
    own = _shares(run.models[str(run.ensemble)])
    candidates = np.mean([_shares(run.models[name]) for name in run.candidates], axis=0)
    axes.plot([0, 1], [0, 1], color=shades.muted, linewidth=0.9)
    axes.plot(candidates, own, ".", color=shades.series[0], markersize=3.5, alpha=0.55,
              label="a test image")  # fmt: skip
    order = np.array_split(np.argsort(candidates), BINS)
    centres = [candidates[group].mean() for group in order]
    means = [own[group].mean() for group in order]
    axes.plot(
        centres, means, color=shades.accent, linewidth=2.4, label="mean by votes, in 12 groups"
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("share of the votes, mean of the candidates")
    axes.set_ylabel(f"share of the votes, {run.ensemble}")
    axes.legend(frameon=False, loc="upper left")
    title(axes, "Votes for the true class", "above the line the ensemble has more")


def _shares(rows: list[Certificate]) -> np.ndarray:
    """Each image's share of votes for its true class, in the order of the images."""
    ordered = sorted(rows, key=lambda row: row.index)
    return np.array([row.estimation_counts[row.label or 0] / row.n for row in ordered])


def main(folder: Path = HERE) -> None:
    save_both(draw, "ensembles", folder)


if __name__ == "__main__":
    main()
