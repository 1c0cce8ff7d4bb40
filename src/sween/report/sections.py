"""The report's words about runs: a section for each, and their settings side by side."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from sween.evaluation import PairedInterval, RadiusField
from sween.report.comparison import interval_in_words
from sween.report.figures import draw_curves
from sween.report.grid import markdown_text
from sween.report.intervals import intervals_in_words
from sween.report.log_comparison import images_in_words
from sween.report.measured import MeasuredRun
from sween.report.tables import plain_number, signed, to_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_section(run: MeasuredRun, *, figures: bool = True) -> str:
    """One run: what it is, its table, the lead of its ensemble and, with `figures`, its curves."""
    said = f"{run.dataset}, {images_in_words(run.indices)}."
    lines = [f"## {markdown_text(run.name)}\n", f"{markdown_text(said)}\n"]
    if run.images_asked is not None and run.images_asked != len(run.indices):
        lines.append(
            f"**Incomplete: {len(run.indices):,} of the {run.images_asked:,} images asked for.**\n"
        )
    if run.skipped_note is not None:
        lines.append(f"**{run.skipped_note}**\n")
    lines.append(to_markdown(run.rows))
    lines.append(f"{intervals_in_words(run.rows)}\n")
    if run.sampling_note is not None:
        lines.append(f"**{markdown_text(run.sampling_note)}**\n")
    if run.lead is not None and run.ensemble is not None:
        lines.append(markdown_text(_sentence(run.ensemble, *run.lead)) + "\n")
    return "\n".join([*lines, *(_curves(run) if figures else ())])


def _curves(run: MeasuredRun) -> list[str]:
    figure, *others = (quote(os.fsencode(name)) for name in curve_files(run))
    also = "".join(f" By the other bound: [PNG]({one}.png), [SVG]({one}.svg)." for one in others)
    return [
        f"![Radius-accuracy curves of {markdown_text(run.name)}]({figure}.png)\n",
        f"The same figure as [SVG]({figure}.svg).{also}\n",
    ]


def _sentence(ensemble: str, candidate: str, interval: PairedInterval) -> str:
    """The comparison in words."""
    return (
        f"Measured on {images_in_words(interval.indices)}, the ACR of {ensemble} minus that of "
        f"{candidate}, its best candidate by ACR, is {signed(interval.difference)}, with "
        f"{interval_in_words(interval)}."
    )


def draw_run(run: MeasuredRun, bound: str) -> "Figure":
    """The radius-accuracy curves of a run by one bound."""
    sample = run.sample
    fields: dict[str, RadiusField] = {"cohen": "radius_cohen", "two-class": "radius_two_class"}
    shown = f"n = {_range(run, 'n')} · α = {sample.alpha:g} · {len(run.indices):,} images"
    return draw_curves(
        run.models,
        title=f"{run.dataset}, σ = {plain_number(sample.sigma)}",
        subtitle=shown if bound == sample.bound else f"{shown} · {bound} bound",
        ensemble=run.ensemble,
        candidates=run.candidates,
        radius="radius" if bound == sample.bound else fields[bound],
    )


def curve_files(run: MeasuredRun) -> dict[str, str]:
    """The curves' figures by name, with their bound: the run's own, and the other where known."""
    names = {f"curve-{run.name}": run.sample.bound}
    rows = [row for own in run.models.values() for row in own]
    if all(row.radius_cohen is not None and row.radius_two_class is not None for row in rows):
        other = "two-class" if run.sample.bound == "cohen" else "cohen"
        names[f"curve-{other}-{run.name}"] = other
    return names


def _range(run: MeasuredRun, field: str) -> str:
    values = run.distinct(field)
    first, last = f"{values[0]:,}", f"{values[-1]:,}"
    return first if first == last else f"{first}..{last}"


def _sampling(run: MeasuredRun) -> str:
    """With what belongs to it."""
    asked = {
        "decide": ", ".join(run.sample.decisions or ()),
        "tolerance": f"{run.config.get('tolerance', '')}",
        "budget": f"{run.config.get('budget', '')}",
    }
    return f"{run.sample.sampling} {asked.get(run.sample.sampling, '')}".strip()


def settings_section(runs: Sequence[MeasuredRun]) -> str:
    """One column a run: what was asked for, on which images, by which code and when."""
    described = [_describe(run) for run in runs]
    lines = [
        "## Settings\n",
        "| " + " | ".join(["setting", *(markdown_text(run.name) for run in runs)]) + " |",
        "| " + " | ".join([":---"] * (len(runs) + 1)) + " |",
    ]
    for name in described[0]:
        cells = [name, *(markdown_text(one[name]) for one in described)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _describe(run: MeasuredRun) -> dict[str, str]:
    sample = run.sample
    return {
        "dataset": run.dataset,
        "sigma": plain_number(sample.sigma),
        "n0": f"{sample.n0:,}",
        "n": _range(run, "n"),
        "alpha": f"{sample.alpha:g}",
        "bound": sample.bound,
        "sampling": _sampling(run),
        "noise": sample.noise,
        "votes": sample.votes,
        "precision": sample.precision,
        "seed": ", ".join(str(seed) for seed in run.distinct("seed")),
        "images": images_in_words(run.indices),
        "commit": str(run.environment.get("commit") or "unknown"),
        "date": str(run.environment.get("date") or "unknown"),
    }
