"""Ensembles against their best candidates, as a table and in words."""

from collections.abc import Sequence

from sween.data.selection import format_indices
from sween.evaluation import PairedInterval
from sween.report.grid import Cell, Table
from sween.report.measured import MeasuredRun, outwards
from sween.report.tables import plain_number, signed

_HEADINGS = (
    *("run", "σ", "Model", "best candidate", "ACR difference", "from", "to", "confidence %"),
    "indices",
)
_FIELDS = (
    *("run", "sigma", "model", "candidate", "difference", "low", "high", "confidence", "indices"),
)


def comparison_table(runs: Sequence[MeasuredRun]) -> Table | None:
    """The lead in ACR with its paired bootstrap interval, its ends rounded outwards.

    None where no run has an ensemble and candidates.
    """
    rows = []
    for run in runs:
        if run.lead is None or run.ensemble is None:
            continue
        candidate, interval = run.lead
        low, high = outwards(interval)
        indices = format_indices(sorted(interval.indices))
        rows.append(
            [
                Cell(run.name, run.name),
                Cell(plain_number(run.sample.sigma), run.sample.sigma),
                Cell(run.ensemble, run.ensemble),
                Cell(candidate, candidate),
                Cell(signed(interval.difference), interval.difference),
                Cell(signed(low), interval.low),
                Cell(signed(high), interval.high),
                Cell(f"{100 * interval.confidence:g}", interval.confidence),
                Cell(indices, indices),
            ]
        )
    return Table("comparison", _HEADINGS, _FIELDS, rows, (0, 2, 3, 8)) if rows else None


def interval_in_words(interval: PairedInterval) -> str:
    """What a difference has, its ends rounded outwards."""
    low, high = outwards(interval)
    verdict = "excludes" if interval.excludes_zero else "includes"
    return (
        f"a {100 * interval.confidence:g}% paired bootstrap interval of {signed(low)} to "
        f"{signed(high)}, which {verdict} zero"
    )
