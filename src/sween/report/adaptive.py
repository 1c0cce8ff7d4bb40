"""The paper's adaptive table: what an early exit saves, and what it costs."""

from collections.abc import Sequence

from sween.evaluation import average_certified_radius
from sween.records import Certificate, format_radius
from sween.report.measured import MeasuredRun
from sween.report.tables import plain_number


def to_adaptive_markdown(run: MeasuredRun) -> str | None:
    """Network evaluations and ACR of the run's ensembles by exit; None where no exit is used."""
    ensembles = {
        model: rows
        for model, rows in run.models.items()
        if run.kinds[model] != "candidate"
        and (rows[0].exit != "none" or max(_per_sample(rows)) > 1)
    }
    if all(rows[0].exit == "none" for rows in ensembles.values()):
        return None
    lines = [
        "| σ | Model | exit | ACR | evaluations an image | of a noisy image |",
        "| ---: | :--- | :--- | ---: | ---: | ---: |",
    ]
    for model, rows in ensembles.items():
        evaluations = sum(row.member_evaluations for row in rows) / len(rows)
        cells = [
            plain_number(rows[0].sigma),
            model.replace("|", "\\|"),
            rows[0].exit,
            format_radius(average_certified_radius(rows)),
            f"{evaluations:,.0f}",
            f"{sum(_per_sample(rows)) / len(rows):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _per_sample(rows: Sequence[Certificate]) -> list[float]:
    return [row.member_evaluations / row.samples for row in rows]
