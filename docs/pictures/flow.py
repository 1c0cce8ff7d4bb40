"""Draws flow.png, the rooms of the package.

python docs/pictures/flow.py
"""

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
BESIDE = "   ·   ".join(
    (
        "also:   training (makes members)",
        "cluster (many machines)",
        "zoo, theory, reproduce, bench, demo, doctor",
    )
)
ABOVE = "cli:   " + "   ".join(VERBS)


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
    figure = Figure(figsize=(16, 4.2))
    axes = figure.add_axes((0.01, 0.02, 0.98, 0.96))
    axes.set_xlim(0, 16)
    axes.set_ylim(0, 4.2)
    axes.set_axis_off()
    _box(axes, 0.1, 3.45, 15.8, 0.6, shades.accent_fill, shades)
    axes.text(8, 3.75, ABOVE, ha="center", va="center", color=shades.ink, fontsize=11)
    _box(axes, 0.1, 0.15, 15.8, 0.6, shades.fill, shades)
    axes.text(8, 0.45, BELOW, ha="center", va="center", color=shades.ink, fontsize=10.5)
    for position, (name, holds, gives) in enumerate(ROOMS):
        x = 0.1 + 2.0 * position
        _box(axes, x, 1.35, 1.55, 1.5, shades.paper, shades)
        axes.text(
            x + 0.775, 2.6, name, ha="center", color=shades.accent, fontsize=11.5, weight="bold"
        )
        axes.text(x + 0.775, 1.93, holds, ha="center", va="center", color=shades.ink, fontsize=8.6)
        if gives:
            arrow = FancyArrowPatch(
                (x + 1.57, 2.1),
                (x + 1.98, 2.1),
                arrowstyle="-|>",
                mutation_scale=14,
                color=shades.muted,
            )
            axes.add_patch(arrow)
            axes.text(x + 1.775, 1.22, gives, ha="center", va="top", color=shades.muted, fontsize=8)
    axes.text(0.15, 3.05, "what passes from room to room; import-linter checks the imports",
              color=shades.muted, fontsize=9)  # fmt: skip
    axes.text(15.75, 3.05, BESIDE, ha="right", color=shades.muted, fontsize=9)
    return figure


def main(folder: Path = HERE) -> None:
    save_both(draw, "flow", folder)


if __name__ == "__main__":
    main()
