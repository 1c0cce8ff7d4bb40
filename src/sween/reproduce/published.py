"""Published numbers, from configs/published."""

import functools
import tomllib
from typing import Any

from sween.training.recipes import configs_folder

PAPER, OURS = "paper", "sween"
"""Where the numbers of a row are from."""

Record = dict[str, Any]
"""A row of a table by the fields of its columns; those that it lacks are empty."""


@functools.cache
def _tables() -> dict[str, list[Record]]:
    tables: dict[str, list[Record]] = {}
    for path in sorted((configs_folder() / "published").glob("*.toml")):
        tables |= tomllib.loads(path.read_text("utf-8"))
    return tables


def published_rows(table: str | None, sigma: float) -> list[Record]:
    """The rows of a table at one noise level; none for a table that is not published."""
    rows = [] if table is None else _tables().get(table, [])
    return [row for row in rows if row.get("sigma", sigma) == sigma]
