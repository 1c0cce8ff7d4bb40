"""Everything that the page shows, as plain values for its JSON block."""

from collections.abc import Mapping, Sequence
from typing import Any

from sween.records import format_radius
from sween.report.comparison import interval_in_words
from sween.report.measured import MeasuredRun
from sween.report.page.curves import attacks_content, curves_content
from sween.report.page.gallery import Pictures, gallery_content
from sween.report.page.more import PageTable, more_content
from sween.report.page.numbers import UNITS
from sween.report.page.provenance import flat, provenance_content, titled
from sween.report.page.run import PageRun
from sween.report.page.table import table_content
from sween.report.tables import plain_number, signed


def page_content(
    runs: Sequence[PageRun],
    tables: Sequence[PageTable] = (),
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The content of the page's JSON block; see the functions of its parts for their layout.

    Args:
        runs: of the page.
        tables: what it shows beside the table of all models.
        others: by a name, how and where what belongs to no run was made.
    """
    pictures = Pictures()
    return {
        "units": UNITS,
        "table": table_content([page.run for page in runs]) if runs else None,
        "tables": more_content(tables),
        "others": [
            {"name": name, "provenance": titled({"config.toml and environment.json": flat(made)})}
            for name, made in (others or {}).items()
        ],
        "runs": [_run_content(page, pictures) for page in runs],
        "pictures": pictures.all,
    }


def _run_content(page: PageRun, pictures: Pictures) -> dict[str, Any]:
    run = page.run
    return {
        "name": run.name,
        "dataset": run.dataset,
        "sigma": plain_number(run.sample.sigma),
        "alpha": f"{run.sample.alpha:g}",
        "n": _range(run),
        "bound": run.sample.bound,
        "count": len(run.indices),
        "asked": run.images_asked,
        "notes": [note for note in (run.skipped_note, run.sampling_note) if note],
        "lead": _lead(run),
        "classes": list(page.class_names),
        "models": curves_content(run),
        "ensemble": run.ensemble,
        "attacks": attacks_content(page.attacks),
        "gallery": gallery_content(page, pictures),
        "provenance": provenance_content(page),
    }


def _range(run: MeasuredRun) -> str:
    values = run.distinct("n")
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _lead(run: MeasuredRun) -> str | None:
    """The ensemble against its best candidate in words."""
    if run.lead is None:
        return None
    candidate, interval = run.lead
    return (
        f"{run.ensemble} has an average certified radius of {format_radius(interval.first)}, its "
        f"best candidate {candidate} one of {format_radius(interval.second)}. The difference of "
        f"{_typeset(signed(interval.difference))} has {_typeset(interval_in_words(interval))}."
    )


def _typeset(words: str) -> str:
    """With minus signs for hyphens."""
    return words.replace("-", "−")
