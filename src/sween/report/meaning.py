"""What the columns of a report's tables mean: of those that are there, and of no others."""

from collections.abc import Iterator, Sequence

from sween.report.grid import Table
from sween.report.measured import MeasuredRun
from sween.report.tables import to_table

ACCURACY = """\
- **0.00, 0.25, ...**: certified accuracy in percent at that l2 radius (pixels scaled to [0,1]): the
  share of all images whose certified answer is right with at least that radius. Wrong and
  abstained images stay in the denominator.
- **ACR**: average certified radius over all images, 0 where wrong or abstained; it equals the area
  under the curve. Rounded down, since a radius rounded up was not certified.
- **abstain %**: share of images that the classifier declines to answer."""

OTHER_BOUND = """\
- {columns}: the ACR of the same votes by that bound; - where it cannot be
  had. Each bound's certificates hold on their own, not both at once."""

SUMMARIES = """\
- **AVG**, **UE**: the mean and the largest value of each column over the candidates. UE is no
  model: each of its columns may come from another candidate."""

RESIST = """\
- **resist %**: answered rightly and not led to another class by the attack. An image that the
  attack's judge declined to answer was not attacked; where a certificate answers it, it counts as
  it was certified."""

BOLD = "- **Bold**: the best model of a column, where the models differ."

CERTIFICATES = """\
Each certificate holds with probability at least 1 - alpha over its own noise, image by image. The
{kinds} of the choice of test images alone, not of training or of the noise."""


def meaning_section(runs: Sequence[MeasuredRun], tables: Sequence[Table], *, logs: bool) -> str:
    """The section, as report.md has it; empty where no table needs one.

    Args:
        runs: of the report.
        tables: its other tables.
        logs: whether it compares with published logs, by bootstrap intervals.
    """
    lines = "\n".join(_lines(runs, tables))
    if not lines:
        return ""
    section = f"## What the columns mean\n\n{lines}\n"
    if not runs:
        return section
    bootstrap = logs or any(run.lead is not None for run in runs)
    kinds = (
        "confidence and bootstrap intervals speak" if bootstrap else "confidence intervals speak"
    )
    return f"{section}\n{CERTIFICATES.format(kinds=kinds)}\n"


def _lines(runs: Sequence[MeasuredRun], tables: Sequence[Table]) -> Iterator[str]:
    main = [to_table(run.rows) for run in runs]
    headings = {heading for table in (*main, *tables) for heading in table.headings}
    if runs:
        others = [name for name in ("two-class ACR", "Cohen ACR") if name in headings]
        yield ACCURACY
        yield OTHER_BOUND.format(columns=", ".join(f"**{name}**" for name in others))
    if any(not row.is_model for run in runs for row in run.rows):
        yield SUMMARIES
    if "resist %" in headings:
        yield RESIST
    if any(cell.best for table in (*main, *tables) for row in table.rows for cell in row):
        yield BOLD
