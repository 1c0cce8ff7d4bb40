"""The paper's adaptive table: what an early exit saves, and what it costs."""

from collections.abc import Sequence

from sween.evaluation import average_certified_radius
from sween.records import Certificate, format_radius
from sween.report.grid import Cell, Table, mark_best
from sween.report.measured import MeasuredRun
from sween.report.tables import plain_number

_HEADINGS = ("run", "σ", "Model", "exit", "ACR", "evaluations an image", "of a noisy image")
_FIELDS = ("run", "sigma", "model", "exit", "acr", "evaluations", "evaluations_of_a_noisy_image")


def adaptive_table(runs: Sequence[MeasuredRun]) -> Table | None:
    """Network evaluations and ACR of ensembles by exit; None where no run uses an exit."""
    rows, blocks = list[list[Cell]](), list[int]()
    for number, run in enumerate(runs):
        ensembles = {
            model: own
            for model, own in run.models.items()
            if run.kinds[model] != "candidate" and (own[0].exit != "none" or _mean(own) > 1)
        }
        if any(own[0].exit != "none" for own in ensembles.values()):
            rows += [_row(run.name, model, own) for model, own in ensembles.items()]
            blocks += [number] * len(ensembles)
    for column, lowest in ((4, False), (5, True), (6, True)):
        rows = mark_best(rows, column, among=blocks, lowest=lowest)
    return Table("adaptive", _HEADINGS, _FIELDS, rows, (0, 2, 3), blocks) if rows else None


def _row(run: str, model: str, rows: Sequence[Certificate]) -> list[Cell]:
    evaluations = sum(row.member_evaluations for row in rows) / len(rows)
    acr = average_certified_radius(rows)
    return [
        Cell(run, run),
        Cell(plain_number(rows[0].sigma), rows[0].sigma),
        Cell(model, model),
        Cell(rows[0].exit, rows[0].exit),
        Cell(format_radius(acr), acr),
        Cell(f"{evaluations:,.0f}", evaluations),
        Cell(f"{_mean(rows):.2f}", _mean(rows)),
    ]


def _mean(rows: Sequence[Certificate]) -> float:
    return sum(row.member_evaluations / row.samples for row in rows) / len(rows)
