"""The files of a report: put together in memory, then written."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sween.errors import BadInput
from sween.locks import FolderLock
from sween.report import canvas
from sween.run_folder import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTING = "report-files.json"
"""Names the files of a report, so that the next one in the same folder takes its place."""

KIND = "files of a sween report"
"""By which such a listing is known."""


class ReportFiles:
    """What a report consists of; nothing is on disk before all of it is known to be good."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._figures: dict[str, Figure] = {}

    def add_text(self, name: str, text: str) -> None:
        """A file of text; the last one added is written last."""
        self._refuse_double(name)
        # A folder's name may be no Unicode, and tables for machines have it as it is.
        self._texts[name] = text.encode("utf-8", "backslashreplace").decode()

    def add_figure(self, name: str, figure: "Figure") -> None:
        """A figure as NAME.png and NAME.svg."""
        self._refuse_double(f"{name}.png")
        self._figures[name] = figure

    def _refuse_double(self, name: str) -> None:
        if name in self.names:
            raise BadInput(
                f"file {name} of the report",
                expected="one content",
                got="two",
                fix="rename a folder or a log: their names make those of files",
            )

    @property
    def names(self) -> list[str]:
        """Of all files."""
        drawn = [f"{name}.{kind}" for name in self._figures for kind in ("png", "svg")]
        return [*drawn, *self._texts]

    def write(self, out: Path) -> None:
        """Write all files, each whole or not at all, and remove what an earlier report left."""
        with FolderLock(out):
            self._write(out)

    def _write(self, out: Path) -> None:
        earlier = listed(out)
        # Before the first file: a run that is killed leaves nothing that the next does not know.
        write_json(out / LISTING, {"kind": KIND, "files": sorted({*earlier, *self.names})})
        for name, figure in self._figures.items():
            canvas.save(figure, [out / f"{name}.png", out / f"{name}.svg"])
        for name, text in self._texts.items():
            write_text(out / name, text)
        for name in set(earlier) - set(self.names):
            if (out / name).is_file():
                (out / name).unlink()
        write_json(out / LISTING, {"kind": KIND, "files": sorted(self.names)})


def listed(out: Path) -> list[str]:
    """Plain names of files in the folder that a report wrote there; nothing else may be removed."""
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
            str(path),
            expected="the listing of an earlier report",
            got="another content",
            fix="move it away, or choose another --out",
        )
    kinds = (".png", ".svg", ".csv", ".tex", ".md", ".html")
    return [
        name
        for name in names
        if isinstance(name, str) and Path(name).name == name and name.endswith(kinds)
    ]
