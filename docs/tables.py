"""Markdown tables and the folders of results/, for the builders of measured tables."""

import re
from collections.abc import Sequence
from pathlib import Path

from sween.markdown import NUMBER, TEXT, markdown_table

_RUN = re.compile(
    r"(?P<dataset>[a-z0-9]+)-sween(?P<members>\d+)-(?P<training>[a-z]+)-sigma(?P<sigma>[0-9.]+)"
)


def markdown(head: Sequence[str], texts: int, rows: Sequence[Sequence[str]]) -> str:
    """A table whose first columns are text."""
    return markdown_table(head, [TEXT] * texts + [NUMBER] * (len(head) - texts), rows)


def runs(results: Path, dataset: str) -> list[tuple[Path, str, float]]:
    """The folders with their training and sigma: the paper's plain training first.

    Of one training and sigma the smaller ensemble comes first.
    """
    names = [_RUN.fullmatch(folder.name) for folder in results.glob(f"{dataset}-sween*")]
    found = [name for name in names if name]
    found.sort(key=lambda name: (float(name["sigma"]), int(name["members"])))
    found.sort(key=lambda name: (name["training"] != "gaussian", name["training"]))
    return [(results / name[0], name["training"], float(name["sigma"])) for name in found]
