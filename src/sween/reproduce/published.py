"""The paper's own numbers, from configs/published."""

import functools
import tomllib
from typing import Any

from sween.training.recipes import configs_folder


@functools.cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads((configs_folder() / "published" / "paper.toml").read_text("utf-8"))


def published_rows(table: str | None, sigma: float) -> list[dict[str, Any]]:
    """The paper's rows of a table at one noise level; none for a table that it does not have."""
    rows = [] if table is None else _tables().get(table, [])
    return [row for row in rows if row.get("sigma", sigma) == sigma]
