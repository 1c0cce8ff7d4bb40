"""The Markdown of report.md: a section for each run, its figures, and what the columns mean."""

import os
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from sween.markdown import markdown_text
from sween.report.measured import MeasuredRun
from sween.report.rows import certified_table
from sween.report.run_tables import lead_in_words
from sween.report.tables import PRINT, Table, images_in_words, markdown

SUMMARIES = """\
- **AVG**, **UE**: the mean and the largest value of each column over the candidates. UE is not a
  model: each of its columns may come from a different candidate.
"""

BOLD = "- **Bold**: the best model of a column, where the models differ.\n"

CERTIFICATES = """
Each certificate holds with probability at least 1 - alpha over its own noise, for each image
separately. Confidence and bootstrap intervals cover the choice of test images alone, not training
or noise; table.csv has the interval of every certified accuracy.
"""

DESCRIPTIONS = {
    "attacked": "Certified accuracy and accuracy under attack",
    "weights": "Weights of the candidates",
    "evaluations": "Network evaluations image by image",
    "noise": "Test images under noise",
}
"""What a figure shows, by the beginning of its file's name."""


def run_section(run: MeasuredRun) -> str:
    """One run: what it is, its table, and the ensemble's lead."""
    table = certified_table(run.rows)
    paragraphs = [markdown_text(f"{run.dataset}, {images_in_words(run.indices)}.")]
    paragraphs += [f"**{markdown_text(warning)}**" for warning in run.warnings]
    paragraphs += [markdown(table).rstrip("\n"), *map(markdown_text, table.notes)]
    if (lead := lead_in_words(run)) is not None:
        paragraphs.append(markdown_text(lead))
    return "\n\n".join([f"## {markdown_text(run.name)}", *paragraphs]) + "\n"


def curve_lines(run: MeasuredRun, files: Iterable[str]) -> str:
    """The lines that show a run's curves, under its own bound, and link to the other figures."""
    figure, *others = (quote(os.fsencode(name)) for name in files)
    also = "".join(f" Under the other bound: [PNG]({one}.png), [SVG]({one}.svg)." for one in others)
    return (
        f"\n![Radius-accuracy curves of {markdown_text(run.name)}]({figure}.png)\n\n"
        f"The same figure as [SVG]({figure}.svg).{also}\n"
    )


def figure_line(kind: str, name: str) -> str:
    """The line that shows the figure of that kind of a run or data set."""
    what = DESCRIPTIONS[kind.partition("-")[0]]
    file = quote(os.fsencode(f"{kind}-{name}"))
    return f"\n![{what} of {markdown_text(name)}]({file}.png)\n"


def meaning_section(runs: Sequence[MeasuredRun], tables: Sequence[Table]) -> str:
    """The meaning of the columns in these tables; empty where none needs explaining."""
    shown = [
        table.shown(PRINT) for table in (*(certified_table(run.rows) for run in runs), *tables)
    ]
    meanings = dict[str, dict[str, None]]()
    for column in (column for table in shown for column in table.columns if column.note):
        meanings.setdefault(column.note, {})[column.heading] = None
    lines = "".join(f"- **{_listed([*own])}**: {note}\n" for note, own in meanings.items())
    if any(not row.is_model for run in runs for row in run.rows):
        lines += SUMMARIES
    if any(cell.best for table in shown for row in table.rows for cell in row):
        lines += BOLD
    if not lines:
        return ""
    return f"## What the columns mean\n\n{lines}{CERTIFICATES if runs else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) < 5 else [*names[:2], "...", names[-1]])
