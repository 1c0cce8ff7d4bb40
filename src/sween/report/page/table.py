"""The page's table: the report's own cells, with what each row is and what it costs beside them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from sween.report.grid import Cell
from sween.report.intervals import (
    FEW_IMAGES,
    ends_in_percent,
    images_counted,
    reach,
    shares_of,
    whole_percents,
)
from sween.report.log_comparison import images_in_words
from sween.report.measured import MeasuredRun
from sween.report.page.more import cell_content
from sween.report.rows import Kind, Row
from sween.report.tables import plain_number, to_table

KINDS: dict[Kind, str] = {
    "model": "model",
    "candidate": "candidate",
    "average": "mean",
    "envelope": "envelope",
    "ensemble": "ensemble",
}

NOTES = {
    "ACR": "average certified radius over all images, 0 where wrong or abstained; rounded down",
    "abstain %": "share of images that the classifier declines to answer",
    "two-class ACR": "ACR of the same votes by the two-class bound",
    "Cohen ACR": "ACR of the same votes by Cohen's bound",
    "evaluations": "networks evaluated for one noisy image, on average",
}

SMALLER_IS_BETTER = ("abstain %", "evaluations")


@dataclasses.dataclass(frozen=True)
class _Column:
    heading: str
    cells: Sequence[Cell]
    text: bool = False


def table_content(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Facts, columns, rows and notes; a cell is [text, value to sort by, whether it is the best].

    A certified accuracy has two more entries: its confidence interval, and the interval in short
    where images are so few that it is shown beside the number, else None.

    Raises:
        BadInput: the runs have columns at different radii.
    """
    rows = [row for run in runs for row in run.rows]
    columns = _columns(runs, rows)
    radii = [plain_number(radius) for radius in rows[0].scores.radii]
    return {
        "facts": _facts(runs),
        "notes": _notes(rows),
        "columns": [
            {
                "heading": column.heading,
                "text": column.text,
                "radius": column.heading in radii,
                "first": _first_order(column),
                "note": _note(column.heading, radii),
            }
            for column in columns
        ],
        "rows": [
            {
                "run": row.run,
                "kind": row.kind,
                "cells": [_content(row, column, position, radii) for column in columns],
            }
            for position, row in enumerate(rows)
        ],
    }


def _columns(runs: Sequence[MeasuredRun], rows: Sequence[Row]) -> list[_Column]:
    table = to_table(rows)
    measured = [
        _Column(heading, [cells[place] for cells in table.rows], text=place in table.left)
        for place, heading in enumerate(table.headings)
        if heading != "run"
    ]
    kinds = []
    if len({row.kind for row in rows}) > 1:
        kinds.append(_Column("kind", [_named(KINDS[row.kind]) for row in rows], text=True))
    if any(row.bound != "cohen" for row in rows):  # else it is the literature's, and the ACR's
        kinds.append(_Column("bound", [_named(row.bound) for row in rows], text=True))
    names = [_Column("run", [_named(row.run) for row in rows], text=True)]
    return [
        *(names if len(runs) > 1 else []),
        *measured[:2],
        *kinds,
        *measured[2:],
        _Column("evaluations", [_evaluations(run, row) for run in runs for row in run.rows]),
    ]


def _facts(runs: Sequence[MeasuredRun]) -> list[str]:
    """Of a single run; several are told apart by a column."""
    if len(runs) > 1:
        return []
    return [runs[0].name, runs[0].dataset, images_in_words(runs[0].indices)]


def _notes(rows: Sequence[Row]) -> list[str]:
    """How far the percentages may be from those of all images, for each number of images."""
    notes = []
    for count in sorted({row.scores.count for row in rows}):
        own = [row for row in rows if row.scores.count == count]
        images = images_counted(count)
        if count < FEW_IMAGES:
            notes.append(
                f"With only {images}, each percentage has its 95% confidence interval "
                "(Clopper-Pearson, in percent) below it."
            )
        else:
            notes.append(
                f"With {images}, the 95% confidence intervals (Clopper-Pearson) reach at most "
                f"{reach(shares_of(own))} percentage points to either side; point at a percentage "
                "to see its own."
            )
    return notes


def _content(row: Row, column: _Column, position: int, radii: Sequence[str]) -> list[Any]:
    content = cell_content(column.cells[position])
    if column.heading not in radii or row.shares is None:
        return content
    share = row.shares[radii.index(column.heading)]
    short = whole_percents(share) if row.scores.count < FEW_IMAGES else None
    low, high = ends_in_percent(share)
    return [*content, f"95% confidence interval: {low} to {high}", short]


def _named(text: str) -> Cell:
    return Cell(text, text)


def _evaluations(run: MeasuredRun, row: Row) -> Cell:
    """Networks evaluated for a noisy image; a summary of candidates costs nothing of its own."""
    if row.kind in ("average", "envelope"):
        return Cell("-")
    own = run.models[row.model]
    mean = sum(one.member_evaluations / one.samples for one in own) / len(own)
    return Cell(f"{mean:.2f}", mean)


def _first_order(column: _Column) -> str:
    """The order that a first click gives: the best first, names from A."""
    upwards = column.text or column.heading in (*SMALLER_IS_BETTER, "σ")
    return "ascending" if upwards else "descending"


def _note(heading: str, radii: Sequence[str]) -> str | None:
    if heading in radii:
        return f"certified accuracy in percent at radius {heading}"
    return NOTES.get(heading)
