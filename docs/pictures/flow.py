"""Draws docs/pictures/flow.png, the rooms of the package: python docs/pictures/flow.py"""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
INK, MUTED, ACCENT, PALE, WARM = "#1f2933", "#616e7c", "#b42318", "#eef1f4", "#fbe9e7"

ROOMS = (
    ("data", "digits, cifar10,\nfolders, any\ntorch data set", "images\nin [0,1]"),
    ("models", "networks by name,\nnormalisation inside,\ncheckpoints", "logits"),
    ("ensemble", "weights on the\nsimplex, exits,\nfolders", "members,\nweights"),
    ("engine", "keyed noise, prepared\nmembers, kernels,\nvote counts", "counts\nby voter"),
    ("smoothing", "SmoothedClassifier,\nthe certification\npipeline", "certificates"),
    ("runs", "typed folders:\nappend, resume,\nread, verify", "rows"),
    ("attack", "AutoAttack, PGD,\nDDN, judged again", "outcomes"),
    ("report", "page, tables,\nfigures, published\nlogs", ""),
)
BELOW = "   ·   ".join(
    (
        "without torch:   bounds (counts to radii)",
        "sampling (how votes are spent)",
        "evaluation (accuracy, ACR)",
        "floor:   records, run_folder, seeding, errors",
    )
)
BESIDE = "   ·   ".join(("also:   training (makes members)", "zoo", "theory", "bench", "demo"))
VERBS = "demo train weigh certify predict attack report verify plan zoo bench"
ABOVE = "cli:   " + "   ".join(VERBS.split())


def _box(axes: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=colour,
            edgecolor=MUTED,
            linewidth=0.9,
        )
    )


def draw() -> Figure:
    figure = Figure(figsize=(16, 4.2), dpi=140, facecolor="white")
    axes = figure.add_axes((0.01, 0.02, 0.98, 0.96))
    axes.set_xlim(0, 16)
    axes.set_ylim(0, 4.2)
    axes.set_axis_off()
    _box(axes, 0.1, 3.45, 15.8, 0.6, WARM)
    axes.text(8, 3.75, ABOVE, ha="center", va="center", color=INK, fontsize=11)
    _box(axes, 0.1, 0.15, 15.8, 0.6, PALE)
    axes.text(8, 0.45, BELOW, ha="center", va="center", color=INK, fontsize=10.5)
    for position, (name, holds, gives) in enumerate(ROOMS):
        x = 0.1 + 2.0 * position
        _box(axes, x, 1.35, 1.55, 1.5, "white")
        axes.text(x + 0.775, 2.6, name, ha="center", color=ACCENT, fontsize=11.5, weight="bold")
        axes.text(x + 0.775, 1.93, holds, ha="center", va="center", color=INK, fontsize=8.6)
        if gives:
            arrow = FancyArrowPatch(
                (x + 1.57, 2.1), (x + 1.98, 2.1), arrowstyle="-|>", mutation_scale=14, color=MUTED
            )
            axes.add_patch(arrow)
            axes.text(x + 1.775, 1.22, gives, ha="center", va="top", color=MUTED, fontsize=8)
    axes.text(0.15, 3.05, "what passes from room to room; import-linter checks the imports",
              color=MUTED, fontsize=9)  # fmt: skip
    axes.text(15.75, 3.05, BESIDE, ha="right", color=MUTED, fontsize=9)
    return figure


if __name__ == "__main__":
    draw().savefig(HERE / "flow.png", metadata={"Software": None})
    sys.exit(0)
