"""Draws exits.png: how many members early exits evaluate per noisy copy, from results/.

python docs/pictures/exits.py
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure
from shades import HERE, RESULTS, Shades, measured, save_both, title

from sween.evaluation import average_certified_radius
from sween.records import Certificate
from sween.report import MeasuredRun, canvas

sys.path.insert(0, str(HERE.parent))

from tables import runs

EXITS = ("none", "exact", "paper")
LABELS = {"none": "no exit", "exact": "exact: same votes", "paper": "paper: its own classifier"}


def draw(shades: Shades) -> Figure:
    found = [measured(path.name) for path, training, _ in runs(RESULTS, "cifar10")
             if training == "gaussian"]  # fmt: skip
    colours = dict(zip(EXITS, (shades.muted, shades.accent, shades.series[0]), strict=True))
    figure = canvas.new_figure(8.6, 0.85 * len(found) + 1.1)
    axes = figure.subplots()
    for place, run in enumerate(found):
        by_exit = _by_exit(run)
        full = average_certified_radius(by_exit["none"])
        for offset, name in enumerate(EXITS):
            rows, y = by_exit[name], place + 0.27 * (offset - 1)
            samples = sum(row.samples for row in rows)
            evaluated = sum(row.member_evaluations for row in rows) / samples
            lost = full - average_certified_radius(rows)
            axes.barh(y, evaluated, height=0.23, color=colours[name],
                      label=LABELS[name] if place == 0 else None)  # fmt: skip
            text = f"{evaluated:.2f}" + (f", ACR {-lost:+.3f}" if lost >= 0.0005 else "")
            axes.text(evaluated + 0.05, y, text, va="center", fontsize=8.5)
    names = [f"{run.ensemble}\nsigma {run.sample.sigma:.2f}" for run in found]
    axes.set_yticks(range(len(found)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("members evaluated per noisy copy, mean over the test images")
    axes.set_xlim(0, 7.6)
    axes.legend(frameon=False, loc="lower right")
    title(axes, "What early exits save, CIFAR-10")
    return figure


def _by_exit(run: MeasuredRun) -> dict[str, list[Certificate]]:
    """The ensemble's certificates by the name of their exit."""
    own = str(run.ensemble)
    return {
        rows[0].exit.split("(")[0]: list(rows)
        for name, rows in run.models.items()
        if name == own or name.startswith(f"{own}+")
    }


def main(folder: Path = HERE) -> None:
    save_both(draw, "exits", folder)


if __name__ == "__main__":
    main()
