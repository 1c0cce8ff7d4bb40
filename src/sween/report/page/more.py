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


SETTINGS = ("run", "σ", "images", "indices", "draws", "steps", "votes")
"""Columns that say how a table's numbers were made; where all rows agree they are said once."""


def more_content(tables: Sequence[PageTable]) -> list[dict[str, Any]]:
    """For each table its title, facts, notes, columns and rows.

    Cells are as in the table of all models. What all rows share is a fact above the table: a column
    of it would push others out of view.
    """
    return [_table_content(own) for own in tables]


def _table_content(own: PageTable) -> dict[str, Any]:
    table = own.table
    shared = [place for place in range(len(table.headings)) if _is_shared(table, place)]
    columns = [place for place in range(len(table.headings)) if place not in shared]
    return {
        "title": own.title,
        "facts": [f"{table.headings[place]} {table.rows[0][place].text}" for place in shared],
        "notes": list(own.notes),
        "columns": [_column(table, place) for place in columns],
        "rows": _rows(table, columns),
    }


def _is_shared(table: Table, place: int) -> bool:
    texts = {row[place].text for row in table.rows}
    return table.headings[place] in SETTINGS and len(texts) == 1


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


def _rows(table: Table, columns: Sequence[int]) -> list[dict[str, Any]]:
    blocks = table.blocks or [0] * len(table.rows)
    return [
        {
            "run": str(block),
            "kind": "alarm" if _alarms(table, row) else "other",
            "cells": [cell_content(row[place]) for place in columns],
        }
        for block, row in zip(blocks, table.rows, strict=True)
    ]


def _alarms(table: Table, row: Sequence[Cell]) -> bool:
    return "alarms" in table.headings and bool(row[list(table.headings).index("alarms")].value)
