"""Draws flow.png, the rooms of the package.

python docs/pictures/flow.py
"""

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from shades import HERE, Shades, save_both

from sween.cli.verbs import VERBS

ROOMS = (
    ("data", "digits, cifar10,\nfolders, any\ntorch data set", "images\nin [0,1]"),
    ("models", "networks by name,\nnormalisation inside,\ncheckpoints", "logits"),
    ("ensemble", "weights on the\nsimplex, exits,\nfolders", "members,\nweights"),
    ("engine", "keyed noise,\nprepared members,\nkernels, vote counts", "counts\nby voter"),
    ("smoothing", "SmoothedClassifier,\nthe certification\npipeline", "certificates"),
    ("runs", "typed folders:\nappend, resume,\nread, verify", "rows"),
    ("attack", "AutoAttack, PGD,\nDDN, judged again", "outcomes"),
    ("report", "page, tables,\nfigures, published\nlogs", ""),
)
ACROSS = 4
"""Rooms in a line: text must stay readable at the width of a page."""

BELOW = (
    "without torch:   bounds (counts to radii)   ·   sampling (how votes are spent)   ·\n"
    "evaluation (accuracy, ACR)   ·   floor:   records, run_folder, seeding, errors"
)
BESIDE = (
    "also:   training (makes members)   ·   cluster (many machines)   ·   zoo, theory, reproduce,\n"
    "bench, demo, doctor.   Arrows: what passes between rooms; import-linter checks the imports."
)
ABOVE = textwrap.fill("cli:   " + "   ".join(VERBS), 80, drop_whitespace=False)


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str, shades: Shades
) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=colour,
            edgecolor=shades.muted,
            linewidth=0.9,
        )
    )


def draw(shades: Shades) -> Figure:
    figure = Figure(figsize=(10, 6.6))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 6.6)
    axes.set_axis_off()
    _box(axes, 0.1, 5.7, 9.8, 0.8, shades.accent_fill, shades)
    axes.text(5, 6.1, ABOVE, ha="center", va="center", color=shades.ink, fontsize=12)
    for place, room in enumerate(ROOMS):
        _draw_room(axes, place % ACROSS, 3.75 - 2.0 * (place // ACROSS), room, shades)
    turn = [(9.05, 3.75), (9.05, 3.5), (0.95, 3.5), (0.95, 3.27)]  # to the next line
    axes.plot(*zip(*turn, strict=True), color=shades.muted, linewidth=1.3)
    _draw_arrow(axes, turn[-1], (0.95, 3.22), shades)
    axes.text(5, 3.53, ROOMS[ACROSS - 1][2].replace("\n", " "), ha="center", va="bottom",
              color=shades.muted, fontsize=10.5)  # fmt: skip
    axes.text(0.15, 1.28, BESIDE, va="center", color=shades.muted, fontsize=10.5)
    _box(axes, 0.1, 0.1, 9.8, 0.8, shades.fill, shades)
    axes.text(5, 0.5, BELOW, ha="center", va="center", color=shades.ink, fontsize=11)
    return figure


def _draw_room(
    axes: Axes, column: int, y: float, room: tuple[str, str, str], shades: Shades
) -> None:
    name, holds, gives = room
    x = 0.1 + 2.7 * column
    _box(axes, x, y, 1.7, 1.45, shades.paper, shades)
    axes.text(x + 0.85, y + 1.13, name, ha="center", color=shades.accent, fontsize=13,
              weight="bold")  # fmt: skip
    axes.text(x + 0.85, y + 0.55, holds, ha="center", va="center", color=shades.ink, fontsize=10.5)
    if column + 1 < ACROSS:
        _draw_arrow(axes, (x + 1.72, y + 0.7), (x + 2.68, y + 0.7), shades)
        axes.text(x + 2.2, y + 0.8, gives, ha="center", va="bottom", color=shades.muted,
                  fontsize=10.5)  # fmt: skip


def _draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], shades: Shades
) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=shades.muted)
    )


def main(folder: Path = HERE) -> None:
    save_both(draw, "flow", folder)


if __name__ == "__main__":
    main()
