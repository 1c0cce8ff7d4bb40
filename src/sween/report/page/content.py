"""Everything that the page shows, as plain values for its JSON block."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sween.data import Dataset
from sween.data.selection import format_indices
from sween.records import format_radius
from sween.report.attacked import AttackedRun, attacks_on
from sween.report.curves import (
    BOUNDS,
    Curve,
    drawing_order,
    known_bounds,
    model_curve,
    radius_field,
    series_numbers,
)
from sween.report.measured import MeasuredRun
from sween.report.page.gallery import UNITS, Gallery, in_units
from sween.report.rows import certified_table
from sween.report.run_tables import lead_in_words, votes_in_words
from sween.report.tables import (
    FEW_IMAGES,
    PAGE,
    Cell,
    Table,
    ends_in_percent,
    images_in_words,
    plain_number,
)

CERTIFICATE_FIELDS = (
    *("sigma", "n0", "n", "alpha", "bound", "sampling", "votes", "exit", "noise", "precision"),
)
"""Fields of the certificates that say how they were made."""

ASCENDING = ("sigma", "radius", "evaluations")
"""Columns of numbers that the first click sorts from the smallest."""


def page_content(
    runs: Sequence[MeasuredRun],
    tables: Sequence[Table],
    attacked: Sequence[AttackedRun],
    datasets: Mapping[str, Dataset],
) -> dict[str, Any]:
    """The content of the page's JSON block; the arguments are those of `render_page`."""
    gallery = Gallery()
    own = {run.name: attacks_on(run, attacked) for run in runs}
    shown = {attack.name for attacks in own.values() for attack in attacks}
    return {
        "units": UNITS,
        "table": _main_table(runs) if runs else None,
        "tables": [table_content(table) for table in tables],
        "runs": [_run_content(run, own[run.name], gallery, datasets.get(run.name)) for run in runs],
        "others": [
            {"name": title, "provenance": _titled({"config.toml and environment.json": values})}
            for attack in attacked
            if attack.name not in shown
            for title, values in [_attack_provenance(attack)]
        ],
        "pictures": gallery.pictures,
    }


def _main_table(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    content = table_content(certified_table([row for run in runs for row in run.rows]))
    if len(runs) == 1:  # several are told apart by a column
        run = runs[0]
        content["facts"] = [run.name, run.dataset, images_in_words(run.indices)]
    return content


def table_content(table: Table) -> dict[str, Any]:
    """Title, facts, notes, columns and rows of a table.

    Settings that all rows share are facts above the table: as columns they would push others out of
    view.
    """
    shown = table.shown(PAGE)
    shared = [
        place
        for place, column in enumerate(shown.columns)
        if column.setting and len({row[place].text for row in shown.rows}) == 1
    ]
    kept = [place for place in range(len(shown.columns)) if place not in shared]
    return {
        "title": table.title,
        "facts": [
            f"{shown.columns[place].heading} {shown.rows[0][place].text}" for place in shared
        ],
        "notes": list(table.notes),
        "columns": [
            {
                "heading": column.heading,
                "text": column.text is None,
                "radius": column.field.startswith("certified_accuracy_"),
                "first": "ascending"
                if column.text is None or column.best == "least" or column.field in ASCENDING
                else "descending",
                "note": column.note or None,
            }
            for column in (shown.columns[place] for place in kept)
        ],
        "rows": [
            {
                "run": str(table.value(row, "run") if table.value(row, "kind") else block),
                "kind": "alarm"
                if table.value(row, "alarms")
                else str(table.value(row, "kind") or "other"),
                "cells": [
                    _cell_content(cells[place], table.value(row, "images")) for place in kept
                ],
            }
            for row, cells, block in zip(table.rows, shown.rows, table.blocks, strict=True)
        ],
    }


def _cell_content(cell: Cell, images: Any) -> list[Any]:
    """[text, value to sort by, whether it is the best].

    A share of images has two more entries: its confidence interval and, where images are so few
    that it is shown below the number, the interval in short.
    """
    content = ["–" if cell.value is None else cell.text, cell.value, int(cell.best)]
    if cell.interval is None:
        return content
    words = f"95% confidence interval: {' to '.join(ends_in_percent(cell.interval))}"
    short = "–".join(ends_in_percent(cell.interval, 0)) if images < FEW_IMAGES else None
    return [*content, words, short]


def _run_content(
    run: MeasuredRun, attacks: Sequence[AttackedRun], gallery: Gallery, dataset: Dataset | None
) -> dict[str, Any]:
    curves = {
        bound: {
            model: model_curve(rows, radius_field(run, bound)) for model, rows in run.models.items()
        }
        for bound in known_bounds(run)
    }
    order = drawing_order(curves[run.sample.bound], run.ensemble)
    series = series_numbers(run.models, run.ensemble)
    return {
        "name": run.name,
        "dataset": run.dataset,
        "sigma": plain_number(run.sample.sigma),
        "alpha": f"{run.sample.alpha:g}",
        "n": votes_in_words(run),
        "bound": run.sample.bound,
        "count": len(run.indices),
        "warnings": run.warnings,
        "lead": lead_in_words(run),
        "ensemble": run.ensemble,
        "models": [
            {
                "name": model,
                "kind": run.kinds[model],
                "series": series.get(model),
                "rank": order.index(model),
                "curves": {
                    bound: _curve(curves[bound][model]) if bound in curves else None
                    for bound in BOUNDS
                },
            }
            for model in run.models
        ],
        **gallery.content(run, attacks, dataset),
        "provenance": _titled(
            {
                "Certificates": _certificates(run),
                "config.toml": run.config.content,
                "environment.json": run.environment,
                **dict(map(_attack_provenance, attacks)),
            }
        ),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    """At radius t a curve is the share of the radii that are at least t among all images."""
    return {"acr": format_radius(curve.acr), "radii": [in_units(radius) for radius in curve.radii]}


def _certificates(run: MeasuredRun) -> dict[str, Any]:
    return {
        "data set": run.dataset,
        "images": f"{len(run.indices):,}",
        "indices (Python slices)": format_indices(run.indices),
        **{name: _range(run.distinct(name)) for name in CERTIFICATE_FIELDS},
        "seeds": run.distinct("seed"),
    }


def _range(values: list[Any]) -> str:
    """All values, or the ends of many numbers: adaptive sampling has an n for each image."""
    if len(values) > 6 and isinstance(values[0], int | float):
        return f"{_text(values[0])} to {_text(values[-1])}"
    return _text(values)


def _attack_provenance(attack: AttackedRun) -> tuple[str, Mapping[str, Any]]:
    return f"Attack {attack.name}", {**attack.config.content, "environment": attack.environment}


def _titled(sections: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    """Titled lists of names and values, all text."""
    return [[title, _flat(own) or [["–", "not recorded"]]] for title, own in sections.items()]


def _flat(values: Mapping[str, Any], path: str = "") -> list[list[str]]:
    """Names and values as text, those of inner tables by their path."""
    found = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{path}{name}.")
        else:
            found.append([f"{path}{name}", _text(value)])
    return found


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if value is None:
        return "none"
    # JSON writes numbers and booleans as TOML does; it does not know dates.
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)
