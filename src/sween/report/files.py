"""The files of a report: collected in memory, then written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sween.errors import BadInput
from sween.locks import FolderLock
from sween.report import canvas
from sween.run_folder import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTING = "report-files.json"
"""Lists the files of a report, so that the next one in the same folder replaces them."""

KIND = "files of a sween report"
"""Identifies such a listing."""


class ReportFiles:
    """The content of a report; nothing is written to disk before all of it is known to be good."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._figures: dict[str, Figure] = {}

    def add_text(self, name: str, text: str) -> None:
        """A text file; the last one added is written last."""
        self._refuse_duplicate(name)
        # A folder's name may be invalid Unicode, and CSV has it unchanged.
        self._texts[name] = text.encode("utf-8", "backslashreplace").decode()

    def add_figures(self, figures: Mapping[str, "Figure"]) -> None:
        """Figures by name, each as NAME.png and NAME.svg."""
        for name, figure in figures.items():
            self._refuse_duplicate(f"{name}.png")
            self._figures[name] = figure

    def _refuse_duplicate(self, name: str) -> None:
        if name in self.names:
            fix = "rename a folder or a log: files are named after them"
            raise BadInput(f"two files of the report would be called {name}", fix=fix)

    @property
    def names(self) -> list[str]:
        """The names of all files."""
        drawn = [f"{name}.{kind}" for name in self._figures for kind in ("png", "svg")]
        return [*drawn, *self._texts]

    def write(self, out: Path) -> None:
        """Write all files, each whole or not at all, and remove those of an earlier report."""
        with FolderLock(out):
            self._write(out)

    def _write(self, out: Path) -> None:
        earlier = _listed(out)
        # Before the first file: if this is killed, the next report still knows every file.
        write_json(out / LISTING, {"kind": KIND, "files": sorted({*earlier, *self.names})})
        for name, figure in self._figures.items():
            for kind in ("png", "svg"):
                canvas.save(figure, out / f"{name}.{kind}")
        for name, text in self._texts.items():
            write_text(out / name, text)
        for name in set(earlier) - set(self.names):
            if (out / name).is_file():
                (out / name).unlink()
        write_json(out / LISTING, {"kind": KIND, "files": sorted(self.names)})


def _listed(out: Path) -> list[str]:
    """The files that an earlier report wrote into the folder; nothing else may be removed."""
    path = out / LISTING
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    names = content.get("files") if isinstance(content, dict) else None
    if not isinstance(content, dict) or content.get("kind") != KIND or not isinstance(names, list):
        raise BadInput(
            f'{path}: expected the listing of an earlier report, with kind "{KIND}", got a file '
            "without it; move it away, or choose another folder"
        )
    kinds = (".png", ".svg", ".csv", ".tex", ".md", ".html")
    return [
        name
        for name in names
        if isinstance(name, str) and Path(name).name == name and name.endswith(kinds)
    ]
