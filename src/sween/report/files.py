"""The files of a report: put together in memory, then written."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sween.report import canvas
from sween.runs import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTING = "files.json"
"""Names the files of a report, so that the next one in the same folder takes its place."""


class ReportFiles:
    """What a report consists of; nothing is on disk before all of it is known to be good."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._figures: dict[str, Figure] = {}

    def add_text(self, name: str, text: str) -> None:
        """A file of text; the last one added is written last."""
        self._texts[name] = text

    def add_figure(self, name: str, figure: "Figure") -> None:
        """A figure as NAME.png and NAME.svg."""
        self._figures[name] = figure

    @property
    def names(self) -> list[str]:
        """Of all files."""
        drawn = [f"{name}.{kind}" for name in self._figures for kind in ("png", "svg")]
        return [*drawn, *self._texts]

    def write(self, out: Path) -> None:
        """Write all files, each whole or not at all, and remove what an earlier report left."""
        earlier = _listed(out)
        # Before the first file: a run that is killed leaves nothing that the next does not know.
        write_json(out / LISTING, {"files": sorted({*earlier, *self.names})})
        for name, figure in self._figures.items():
            canvas.save(figure, [out / f"{name}.png", out / f"{name}.svg"])
        for name, text in self._texts.items():
            write_text(out / name, text)
        for name in set(earlier) - set(self.names):
            (out / name).unlink(missing_ok=True)
        write_json(out / LISTING, {"files": sorted(self.names)})


def _listed(out: Path) -> list[str]:
    """Plain names of files in the folder that a report wrote there; nothing else may be removed."""
    try:
        content = json.loads((out / LISTING).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = content.get("files") if isinstance(content, dict) else None
    if not isinstance(names, list):
        return []
    kinds = (".png", ".svg", ".csv", ".tex", ".md", ".html")
    return [
        name
        for name in names
        if isinstance(name, str) and Path(name).name == name and name.endswith(kinds)
    ]
