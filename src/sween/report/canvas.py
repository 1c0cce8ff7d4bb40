"""The style that all figures share, and saving them.

Figures are made without pyplot, so that no window opens and no figure of the caller is touched.
The same content gives the same bytes on every run.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sween.errors import MissingExtra
from sween.run_folder import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENSEMBLE_COLOUR = "#B3261E"
INK = "#1F2933"
MUTED_INK = "#5B6770"

# From the palettes of Okabe and Ito and of Tol, which stay apart for colour-blind readers. The
# five colours and seven dashes share no factor, so the pairing repeats only after 35 models.
COLOURS = ("#0072B2", "#C98500", "#009E73", "#AA5A9B", "#4A90C4")
DASHES: tuple[tuple[float, ...], ...] = (
    (1, 0),
    (6, 2),
    (2, 1.6),
    (7, 2, 1.5, 2),
    (10, 3),
    (4, 1.5, 1, 1.5, 1, 1.5),
    (1, 1.4),
)

WIDTH = 7.2
WIDTH_WITH_LEGEND_BESIDE = 9.0
HEIGHT = 4.4

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": MUTED_INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#D5DADF",
    "grid.linewidth": 0.6,
    "lines.solid_capstyle": "butt",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED_INK,
    "ytick.color": MUTED_INK,
    "svg.fonttype": "path",
    "svg.hashsalt": "sween",
}

LEFT_OUT = (
    "Figures are left out: they need matplotlib, which is not installed; "
    "pip install 'sween[report]'"
)
"""What a report without figures says."""


def has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The report's style over matplotlib's defaults, whatever the user's settings; undone after.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    if not has_matplotlib():
        raise MissingExtra("matplotlib", "report", "a figure")
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]):
        yield


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> "Figure":
    """An empty figure, to be filled inside `style()`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    return Figure(figsize=(width, height), dpi=200, layout=layout)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as the .png or .svg that its path names, atomically."""
    undated = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with style(), atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], facecolor="white", metadata=undated)


def headings(axes: "Axes", title: str, subtitle: str = "") -> None:
    """A title and a smaller line below it, above the plot."""
    pad = 26 if subtitle else 10
    axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", pad=pad)
    if subtitle:
        axes.annotate(
            subtitle,
            xy=(0, 1),
            xytext=(0, 10),
            xycoords="axes fraction",
            textcoords="offset points",
            color=MUTED_INK,
        )
