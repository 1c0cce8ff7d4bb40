"""The light and the dark version of every picture: NAME.png and NAME-dark.png.

A page names NAME.png; the site shows the other version to readers of its dark theme.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from palette import reduce_colours

from sween.report import MeasuredRun, canvas, load_run

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"


@dataclasses.dataclass(frozen=True)
class Shades:
    """The colours of a version, by what they are for."""

    suffix: str
    paper: str
    ink: str
    muted: str
    grid: str
    fill: str
    accent: str
    accent_fill: str
    series: tuple[str, ...]

    @property
    def style(self) -> dict[str, str]:
        """For matplotlib, over the style of the report's figures."""
        return {
            "figure.facecolor": self.paper,
            "axes.facecolor": self.paper,
            "axes.edgecolor": self.muted,
            "axes.labelcolor": self.ink,
            "grid.color": self.grid,
            "text.color": self.ink,
            "xtick.color": self.muted,
            "ytick.color": self.muted,
        }


LIGHT = Shades(
    suffix="",
    paper="white",
    ink=canvas.INK,
    muted=canvas.MUTED_INK,
    grid="#D5DADF",
    fill="#E7EAED",
    accent=canvas.ENSEMBLE_COLOUR,
    accent_fill="#FBE9E7",
    series=(*canvas.COLOURS[:4], canvas.INK, "#7F7F00"),
)
DARK = Shades(
    suffix="-dark",
    paper="#131416",  # the theme's background
    ink="#E3E6EA",
    muted="#9AA5B1",
    grid="#33383D",
    fill="#2A2F34",
    accent="#FF8A7A",
    accent_fill="#3A2220",
    series=("#56B4E9", "#E6A93A", "#3CC79A", "#D08CC4", "#E3E6EA", "#DFDA6A"),
)


def save_both(draw: Callable[[Shades], Figure], name: str, folder: Path = HERE) -> None:
    """Draw a picture in both versions; the same content gives the same bytes."""
    for shades in (LIGHT, DARK):
        with canvas.style(), matplotlib.rc_context(shades.style):
            figure = draw(shades)
            path = folder / f"{name}{shades.suffix}.png"
            figure.savefig(path, dpi=160, facecolor=shades.paper, metadata={"Software": None})
            reduce_colours(path)


@functools.cache
def measured(name: str) -> MeasuredRun:
    """A run of results/, read and verified once for both versions."""
    return load_run(RESULTS / name)


def title(axes: Axes, text: str, below: str = "") -> None:
    """A title and, where given, a smaller line below it."""
    axes.set_title(text, loc="left", fontsize=11.5, fontweight="bold", pad=24 if below else 10)
    axes.annotate(below, (0, 1), (0, 9), "axes fraction", textcoords="offset points", fontsize=9)
