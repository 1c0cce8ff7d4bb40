"""Tables, built once from plain values and written as Markdown, LaTeX, CSV or into the page."""

import csv
import dataclasses
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sween.evaluation import Share
from sween.markdown import NUMBER, TEXT, markdown_table, markdown_text, one_line

PRINT, PAGE, CSV = "print", "page", "csv"
"""Where a column appears; `print` is Markdown and LaTeX."""

FEW_IMAGES = 100
"""With fewer, a percentage alone misleads: its interval is shown next to it."""

MOST_LISTED = 8
"""How many intervals a sentence can list."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        heading: what readers see.
        field: its name in CSV.
        text: formats a number; None for text, which is left-aligned.
        best: whether the largest or the smallest value is set in bold.
        note: what it means, for the report's glossary and the page's tooltips.
        setting: whether it says how the numbers were made; the page states a setting that all rows
            share once, above the table.
        outputs: where it appears.
    """

    heading: str
    field: str
    text: Callable[[Any], str] | None = None
    best: Literal["", "most", "least"] = ""
    note: str = ""
    setting: bool = False
    outputs: Sequence[str] = (PRINT, PAGE, CSV)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The text shown, the exact value, and whether it is the best of its column."""

    text: str
    value: str | float | None = None
    best: bool = False
    interval: Share | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with its title and notes.

    `name` is that of its files; `blocks` has a number for each row, equal for rows that belong
    together.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    blocks: Sequence[int]
    notes: Sequence[str] = ()

    def shown(self, output: str) -> "Table":
        """With the columns of one output only."""
        places = [place for place, own in enumerate(self.columns) if output in own.outputs]
        return dataclasses.replace(
            self,
            columns=[self.columns[place] for place in places],
            rows=[[row[place] for place in places] for row in self.rows],
        )

    def value(self, row: Sequence[Cell], field: str) -> str | float | None:
        """A row's value in the column of that field; None where there is no such column."""
        fields = [column.field for column in self.columns]
        return row[fields.index(field)].value if field in fields else None


def make_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    records: Sequence[Mapping[str, Any]],
    *,
    blocks: Sequence[int] | None = None,
    rivals: Sequence[object] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Format records into a table, and mark the best values.

    Args:
        name: of the table's files.
        title: its heading.
        columns: each shows the record's value of its field. None is shown as "-"; a `Share` brings
            its confidence interval; a `Cell` is taken as it is.
        records: one for each row.
        blocks: a number for each row, equal for rows that belong together.
        rivals: a key for each row, equal for rows that are compared for the best value; None for
            a row that never is. The blocks by default.
        notes: shown below the table, after those on confidence intervals.
    """
    blocks = [0] * len(records) if blocks is None else blocks
    rows = [[_cell(column, record[column.field]) for column in columns] for record in records]
    for place, column in enumerate(columns):
        if column.best:
            _mark_best(rows, place, blocks if rivals is None else rivals, column.best)
    table = Table(name, title, columns, rows, blocks)
    return dataclasses.replace(table, notes=[*_interval_notes(table), *notes])


def _cell(column: Column, value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    share = value if isinstance(value, Share) else None
    value = value if share is None else share.value
    if value is None:
        return Cell("-")
    return Cell(str(value) if column.text is None else column.text(value), value, interval=share)


def _mark_best(rows: Sequence[list[Cell]], place: int, keys: Sequence[object], best: str) -> None:
    """Compare what is shown: bold on one of two cells that look the same would be confusing."""
    for key in {*keys} - {None}:
        own = [row for row, other in zip(rows, keys, strict=True) if other == key]
        cells = [row[place] for row in own if row[place].value is not None]
        if len({cell.text for cell in cells}) < 2:
            continue
        winner = (max if best == "most" else min)(cells, key=lambda cell: float(cell.value or 0))
        for row in own:
            alike = row[place].text == winner.text
            row[place] = dataclasses.replace(row[place], best=alike)


def _interval_notes(table: Table) -> list[str]:
    """How far the accuracies may be from those on all images like these, by number of images."""
    shares = dict[int, list[Share]]()
    for row in table.rows:
        own = [cell.interval for cell in row if cell.interval is not None]
        if own:
            shares.setdefault(int(table.value(row, "images") or 0), []).extend(own)
    return [_interval_note(count, own) for count, own in sorted(shares.items())]


def _interval_note(count: int, shares: Sequence[Share]) -> str:
    images = f"{count:,} image{'' if count == 1 else 's'}"
    different = {percentage(one.value): one for one in sorted(shares)}
    if count >= FEW_IMAGES or len(different) > MOST_LISTED:
        sides = max(max(one.value - one.low, one.high - one.value) for one in shares)
        return (
            f"With {images}, the 95% confidence intervals (Clopper-Pearson) of these accuracies "
            f"extend at most {math.ceil(1000 * sides) / 10:.1f} percentage points to either side."
        )
    listed = ", ".join(
        f"{text} ({' to '.join(ends_in_percent(one))})" for text, one in different.items()
    )
    return (
        f"With only {images}, the 95% confidence intervals (Clopper-Pearson) of these accuracies "
        f"are wide: {listed}."
    )


def rounded_outwards(low: float, high: float, decimals: int = 3) -> tuple[float, float]:
    """The ends of an interval, rounded away from its middle."""
    scale = 10**decimals
    return math.floor(scale * low) / scale, math.ceil(scale * high) / scale


def ends_in_percent(share: Share, decimals: int = 1) -> tuple[str, str]:
    """The ends of a confidence interval in percent, rounded outwards."""
    low, high = rounded_outwards(100 * share.low, 100 * share.high, decimals)
    return f"{low:.{decimals}f}", f"{high:.{decimals}f}"


def plain_number(value: float) -> str:
    """A setting with two decimals as in the paper, or all its digits where it has more."""
    text = f"{value:.2f}"
    return text if float(text) == value else repr(float(value))


def signed(value: float) -> str:
    """A difference with three decimals; without a sign if it rounds to zero."""
    text = f"{value:+.3f}"
    return "0.000" if float(text) == 0 else text


def signed_interval(low: float, high: float, between: str = " to ") -> str:
    """An interval of differences, rounded outwards."""
    return between.join(map(signed, rounded_outwards(low, high)))


def images_in_words(indices: Sequence[int]) -> str:
    """How many images and which: a number means little without the subset it was measured on."""
    if len(indices) == 1:
        return f"1 image at index {indices[0]}"
    steps = {after - before for before, after in itertools.pairwise(indices)}
    text = f"{len(indices):,} images at indices {indices[0]}..{indices[-1]}"
    if steps == {1}:
        return text
    return f"{text}, every {steps.pop()}" if len(steps) == 1 else f"{text}, with gaps"


def percentage(fraction: float) -> str:
    """A fraction as a percentage with one decimal."""
    return f"{100 * fraction:.1f}"


def whole_number(value: float) -> str:
    """With commas between thousands."""
    return f"{value:,.0f}"


RUN_COLUMNS = (
    Column("run", "run", setting=True),
    Column("σ", "sigma", plain_number, setting=True),
)


def markdown(table: Table) -> str:
    """The table in Markdown, best values bold."""
    table = table.shown(PRINT)
    return markdown_table(
        [markdown_text(column.heading) for column in table.columns],
        [TEXT if column.text is None else NUMBER for column in table.columns],
        [_bold(row, markdown_text, "**{}**") for row in table.rows],
    )


def markdown_section(table: Table) -> str:
    """The table in Markdown with its title and notes."""
    notes = "".join(f"\n{markdown_text(note)}\n" for note in table.notes)
    return f"## {markdown_text(table.title)}\n\n{markdown(table)}{notes}"


def latex(table: Table) -> str:
    """The table in LaTeX, for the booktabs package, best values bold."""
    table = table.shown(PRINT)
    marks = "".join("l" if column.text is None else "r" for column in table.columns)
    headings = " & ".join(latex_text(column.heading) for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{marks}}}", r"\toprule", rf"{headings} \\"]
    before: int | None = None
    for row, block in zip(table.rows, table.blocks, strict=True):
        if block != before:
            lines.append(r"\midrule")
        before = block
        lines.append(" & ".join(_bold(row, latex_text, r"\textbf{{{}}}")) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _bold(row: Sequence[Cell], escape: Callable[[str], str], bold: str) -> list[str]:
    """The texts of a row, the best values in bold."""
    return [bold.format(escape(cell.text)) if cell.best else escape(cell.text) for cell in row]


def to_csv(table: Table) -> str:
    """The table as CSV: every number in full, empty where there is none."""
    table = table.shown(CSV)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.field for column in table.columns])
    writer.writerows([cell.value for cell in row] for row in table.rows)
    return stream.getvalue()


def latex_text(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


_LATEX = {
    **{character: "\\" + character for character in "&%$#_{}"},
    # At the beginning of a row, LaTeX would read these as an argument of the line break before it.
    **{character: f"{{{character}}}" for character in "[]*"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    "ε": r"$\varepsilon$",
}
