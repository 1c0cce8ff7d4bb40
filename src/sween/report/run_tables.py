"""Tables of certification runs: settings, ensembles against candidates, early exits."""

from collections.abc import Sequence
from typing import Any

from sween.data.selection import format_indices
from sween.evaluation import PairedInterval, average_certified_radius
from sween.records import format_radius
from sween.report.measured import MeasuredRun
from sween.report.rows import evaluations_per_sample
from sween.report.tables import (
    RUN_COLUMNS,
    Cell,
    Column,
    Table,
    images_in_words,
    make_table,
    plain_number,
    rounded_outwards,
    signed,
    signed_interval,
    whole_number,
)

_COMPARISON_COLUMNS = (
    *RUN_COLUMNS,
    Column("Model", "model"),
    Column("best candidate", "candidate"),
    Column("ACR difference", "difference", signed),
    Column("CI low", "low", signed),
    Column("CI high", "high", signed),
    Column("confidence %", "confidence", lambda value: f"{100 * value:g}"),
    Column("indices", "indices", setting=True),
)

_EARLY_EXIT_COLUMNS = (
    *RUN_COLUMNS,
    Column("Model", "model"),
    Column("exit", "exit"),
    Column("ACR", "acr", format_radius, "most"),
    Column("evaluations per image", "evaluations", whole_number, "least"),
    Column("per noisy image", "evaluations_of_a_noisy_image", "{:.2f}".format, "least"),
)


def comparison_table(runs: Sequence[MeasuredRun]) -> Table | None:
    """The ensemble's lead in ACR over its best candidate, with a paired bootstrap interval.

    The interval's ends are rounded outwards. None where no run has an ensemble and candidates.
    """
    records = []
    for run in runs:
        if run.lead is None:
            continue
        candidate, interval = run.lead
        low, high = rounded_outwards(interval.low, interval.high)
        records.append(
            {
                "run": run.name,
                "sigma": run.sample.sigma,
                "model": run.ensemble,
                "candidate": candidate,
                "difference": interval.difference,
                "low": Cell(signed(low), interval.low),
                "high": Cell(signed(high), interval.high),
                "confidence": interval.confidence,
                "indices": format_indices(sorted(interval.indices)),
            }
        )
    title = "Ensembles compared with their best candidates"
    return make_table("comparison", title, _COMPARISON_COLUMNS, records) if records else None


def lead_in_words(run: MeasuredRun) -> str | None:
    """The ensemble against its best candidate in a sentence; None without either."""
    if run.lead is None:
        return None
    candidate, interval = run.lead
    verdict = "excludes" if interval.excludes_zero else "includes"
    return (
        f"On {images_in_words(interval.indices)}, the ACR of {run.ensemble} is "
        f"{format_radius(interval.first)} and that of its best candidate, {candidate}, is "
        f"{format_radius(interval.second)}. The {100 * interval.confidence:g}% paired bootstrap "
        f"interval of the difference, {signed(interval.difference)}, is "
        f"{signed_interval(interval.low, interval.high)}, which {verdict} zero"
        f"{' before rounding' if interval.excludes_zero and _shows_zero(interval) else ''}."
    )


def _shows_zero(interval: PairedInterval) -> bool:
    """Whether zero is in the interval as it is printed."""
    low, high = rounded_outwards(interval.low, interval.high)
    return low <= 0 <= high


def early_exit_table(runs: Sequence[MeasuredRun]) -> Table | None:
    """What an early exit saves in network evaluations and costs in ACR; None without any exit."""
    records, blocks = list[dict[str, Any]](), list[int]()
    for number, run in enumerate(runs):
        ensembles = {
            model: rows
            for model, rows in run.models.items()
            if run.kinds[model] != "candidate"
            and (rows[0].exit != "none" or evaluations_per_sample(rows) > 1)
        }
        if all(rows[0].exit == "none" for rows in ensembles.values()):
            continue
        for model, rows in ensembles.items():
            blocks.append(number)
            records.append(
                {
                    "run": run.name,
                    "sigma": rows[0].sigma,
                    "model": model,
                    "exit": rows[0].exit,
                    "acr": average_certified_radius(rows),
                    "evaluations": sum(row.member_evaluations for row in rows) / len(rows),
                    "evaluations_of_a_noisy_image": evaluations_per_sample(rows),
                }
            )
    title = "Network evaluations with and without an early exit"
    if not records:
        return None
    return make_table("adaptive", title, _EARLY_EXIT_COLUMNS, records, blocks=blocks)


def settings_table(runs: Sequence[MeasuredRun]) -> Table:
    """One column per run: its settings, images, code version and date."""
    described = [_settings(run) for run in runs]
    columns = [Column("setting", "setting")]
    columns += [Column(run.name, str(number)) for number, run in enumerate(runs)]
    records = [
        {"setting": name, **{str(number): own[name] for number, own in enumerate(described)}}
        for name in described[0]
    ]
    return make_table("settings", "Settings", columns, records)


def _settings(run: MeasuredRun) -> dict[str, str]:
    sample, settings = run.sample, run.config.settings
    asked = {
        "decide": ", ".join(sample.decisions or ()),
        "tolerance": settings.tolerance,
        "budget": settings.budget,
    }
    return {
        "dataset": run.dataset,
        "sigma": plain_number(sample.sigma),
        "n0": f"{sample.n0:,}",
        "n": votes_in_words(run),
        "alpha": f"{sample.alpha:g}",
        "bound": sample.bound,
        "sampling": f"{sample.sampling} {asked.get(sample.sampling, '')}".strip(),
        "noise": sample.noise,
        "votes": sample.votes,
        "precision": sample.precision,
        "seed": ", ".join(str(seed) for seed in run.distinct("seed")),
        "images": images_in_words(run.indices),
        "commit": str(run.environment.get("commit") or "unknown"),
        "date": str(run.environment.get("date") or "unknown"),
    }


def votes_in_words(run: MeasuredRun) -> str:
    """The number of votes per image, or its range."""
    values = run.distinct("n")
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
