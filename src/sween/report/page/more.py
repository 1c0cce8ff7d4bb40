"""The page's other tables: what report.md has beside certified accuracy."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sween.report.grid import Cell, Table


@dataclasses.dataclass(frozen=True)
class PageTable:
    """A table of the page, its title and what is to be said about it."""

    title: str
    table: Table
    notes: Sequence[str] = ()


def more_content(tables: Sequence[PageTable]) -> list[dict[str, Any]]:
    """For each table its title, notes, columns and rows; cells as in the table of all models."""
    return [
        {
            "title": own.title,
            "notes": list(own.notes),
            "columns": [_column(own.table, place) for place in range(len(own.table.headings))],
            "rows": _rows(own.table),
        }
        for own in tables
    ]


def cell_content(cell: Cell) -> list[Any]:
    """[text, value to sort by, whether it is the best]."""
    return ["–" if cell.value is None else cell.text, cell.value, int(cell.best)]


def _column(table: Table, place: int) -> dict[str, Any]:
    text = place in table.left
    return {
        "heading": table.headings[place],
        "text": text,
        "radius": False,
        "first": "ascending" if text or table.headings[place] in ("σ", "radius") else "descending",
        "note": None,
    }


def _rows(table: Table) -> list[dict[str, Any]]:
    blocks = table.blocks or [0] * len(table.rows)
    return [
        {"run": str(block), "kind": "other", "cells": [cell_content(cell) for cell in row]}
        for block, row in zip(blocks, table.rows, strict=True)
    ]
