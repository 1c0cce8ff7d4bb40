"""The paper's table of certified accuracies: Markdown, LaTeX, and CSV for machines."""

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence

from sween.errors import BadInput
from sween.records import format_radius
from sween.report import grid
from sween.report.rows import Row


@dataclasses.dataclass(frozen=True)
class _Column:
    heading: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] = max


def to_markdown(rows: Sequence[Row]) -> str:
    """The table in Markdown; the best model of each column, run and noise level is bold.

    Accuracies are percentages with one decimal. An average radius is rounded DOWN to three: a
    radius rounded up would claim what was not certified. AVG and UE are no models and are never
    bold, nor is a column in which all models agree.
    """
    return grid.markdown(to_table(rows))


def to_latex(rows: Sequence[Row]) -> str:
    """The same table in LaTeX, for the booktabs package."""
    return grid.latex(to_table(rows))


def to_table(rows: Sequence[Row]) -> grid.Table:
    """The table, whatever it will be written in; several runs have a column for their names."""
    several = len({row.run for row in rows}) > 1
    columns = _columns(rows, _check_rows(rows))
    body = []
    for row in rows:
        rivals = [rival for rival in rows if rival.is_model and _block(rival) == _block(row)]
        own = [grid.Cell(plain_number(row.sigma), row.sigma), grid.Cell(row.model, row.model)]
        named = [grid.Cell(row.run, row.run)] if several else []
        body.append(named + own + [_cell(row, column, rivals) for column in columns])
    headings = ["σ", "Model", *(column.heading for column in columns)]
    headings = ["run", *headings] if several else headings
    left = (0, 2) if several else (1,)
    blocks = [list(dict.fromkeys(map(_block, rows))).index(_block(row)) for row in rows]
    return grid.Table("table", headings, headings, body, left=left, blocks=blocks)


def to_csv(rows: Sequence[Row]) -> str:
    """The table as CSV for machines: all digits of every fraction and radius, empty if unknown."""
    names = [f"certified_accuracy_{plain_number(radius)}" for radius in _check_rows(rows)]
    records = [_csv_record(row, names) for row in rows]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def _csv_record(row: Row, names: Sequence[str]) -> dict[str, str | float | None]:
    return {
        "run": row.run,
        "sigma": row.sigma,
        "model": row.model,
        "kind": row.kind,
        "bound": row.bound,
        "images": row.scores.count,
        **dict(zip(names, row.scores.accuracies, strict=True)),
        "acr": row.scores.acr,
        "abstention": row.abstention,
        "acr_two_class": row.acr_two_class,
        "acr_cohen": row.acr_cohen,
        **_csv_intervals(row, names),
    }


def _csv_intervals(row: Row, names: Sequence[str]) -> dict[str, float | None]:
    """The ends of each accuracy's 95% confidence interval; empty for AVG and UE."""
    ends = dict.fromkeys(f"{name}_{end}" for name in names for end in ("low", "high"))
    values = [end for share in row.shares or () for end in (share.low, share.high)]
    return ends | dict(zip(ends, values, strict=False))


def plain_number(value: float) -> str:
    """A setting with two decimals as in the paper, or all its digits where it has more."""
    text = f"{value:.2f}"
    return text if float(text) == value else repr(float(value))


def signed(value: float) -> str:
    """A difference with three decimals; what rounds to nothing has no sign."""
    text = f"{value:+.3f}"
    return "0.000" if float(text) == 0 else text


def percentage(fraction: float) -> str:
    """A fraction as a percentage with one decimal."""
    return f"{100 * fraction:.1f}"


def _check_rows(rows: Sequence[Row]) -> tuple[float, ...]:
    if not rows:
        raise BadInput("rows", expected="at least one", got="none", fix="build them first")
    for row in rows:
        if row.scores.radii != rows[0].scores.radii:
            raise BadInput(
                f"radii of {row.model}",
                expected=f"{rows[0].scores.radii} as in the first row",
                got=row.scores.radii,
                fix="build all rows with the same radii",
            )
    return rows[0].scores.radii


def _columns(rows: Sequence[Row], radii: Sequence[float]) -> list[_Column]:
    def accuracy_at(position: int) -> Callable[[Row], float]:
        return lambda row: row.scores.accuracies[position]

    columns = [
        _Column(plain_number(radius), accuracy_at(position), percentage)
        for position, radius in enumerate(radii)
    ]
    columns += [
        _Column("ACR", lambda row: row.scores.acr, format_radius),
        _Column("abstain %", lambda row: row.abstention, percentage, min),
        _Column("two-class ACR", lambda row: row.acr_two_class, format_radius),
    ]
    if any(row.bound != "cohen" for row in rows):  # the literature compares Cohen's
        columns.append(_Column("Cohen ACR", lambda row: row.acr_cohen, format_radius))
    return columns


def _block(row: Row) -> tuple[str, float]:
    return row.run, row.sigma


def _cell(row: Row, column: _Column, rivals: Sequence[Row]) -> grid.Cell:
    value = column.value(row)
    if value is None:
        return grid.Cell("-")
    known = [other for rival in rivals if (other := column.value(rival)) is not None]
    # By what is shown: of two that look the same, one in bold would puzzle.
    shown = {column.text(other) for other in known}
    best = row.is_model and column.text(value) == column.text(column.best(known))
    return grid.Cell(column.text(value), value, best and len(shown) > 1)
