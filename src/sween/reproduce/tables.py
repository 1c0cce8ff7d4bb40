"""The paper's tables with ours next to them, from the folders that a plan has made."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

from sween.evaluation import (
    PairedInterval,
    average_certified_radius,
    bootstrap_over_envelope,
    paired_bootstrap,
)
from sween.records import format_radius
from sween.report.rows import DEFAULT_RADII, Row, build_rows
from sween.report.tables import Cell, Column, Table, make_table, plain_number, signed, whole_number
from sween.reproduce.attack_table import attack_records
from sween.reproduce.complete import complete_certifications
from sween.reproduce.costs import cost_file
from sween.reproduce.plan import Ensemble
from sween.reproduce.published import OURS, PAPER, Record, published_rows
from sween.reproduce.record import record_tables
from sween.reproduce.steps import weighting_name
from sween.reproduce.workspace import Workspace
from sween.runs import CertificationRun

_SOURCE = (
    Column("σ", "sigma", plain_number, setting=True),
    Column("Model", "model"),
    Column("from", "source"),
)
_RADII = tuple(
    Column(f"{radius:.2f}", f"accuracy_{radius:.2f}", "{:.1f}".format) for radius in DEFAULT_RADII
)
_CERTIFIED = (
    *_SOURCE,
    *_RADII,
    Column("ACR", "acr", format_radius),
    Column("lead in ACR", "lead"),
)
_ATTACKS = (*_SOURCE, Column("accuracy", "kind"))
_ADAPTIVE = (
    *_SOURCE,
    Column("exit", "exit"),
    Column("ACR", "acr", format_radius),
    Column("lost", "lost"),
    Column("evaluations per image", "evaluations", whole_number),
)

_COSTS = (
    *_SOURCE,
    Column("epochs", "epochs", whole_number),
    Column("seconds per epoch", "seconds_per_epoch", "{:.2f}".format),
    Column("hours", "hours", "{:.3f}".format),
    Column("for the paper's epochs", "paper_hours", "{:.3f}".format),
    Column("parameters", "parameters", whole_number),
    Column("FLOPs", "flops", whole_number),
    Column("samples per second", "samples_per_second", whole_number),
    Column("seconds per certificate", "seconds_per_certificate", "{:.3f}".format),
)


_ABOUT = {
    "certified": "AVG is the mean of an ensemble's candidates, UE their upper envelope: the "
    "largest value of any of them, column by column. An ensemble's lead is over the area under the "
    "envelope of their curves, with a 95% paired bootstrap interval, which errs low: resamples "
    "have a higher envelope; for other weights it is the difference from the ensemble's own.",
    "adaptive": "Lost: ACR of the full ensemble minus ACR with the exit, with a paired interval.",
    "attacks": "In percent of the same images, at each l2 size of the perturbation: certified "
    "accuracy is a lower bound, accuracy under attack (empirical) an upper one. The lead of an "
    "ensemble is in accuracy under attack, with a 95% paired bootstrap interval over the images.",
    "costs": "Hours are the seconds per epoch, measured over a few epochs, times the recipe's "
    "epochs, or those of the paper's recipe; an ensemble's include its members and weights. The "
    "paper's are on one GTX 1080 Ti; like the paper, we count a multiply-add as one FLOP.",
}
"""The note below a kind of table."""


def make_tables(space: Workspace) -> list[Table]:
    """The tables of a plan, of all noise levels that are certified (and attacked).

    Example:
        See `carry_out`.
    """
    plan, kind = space.plan, space.plan.table
    if kind == "record":
        return record_tables(space)
    eps = plan.attack.eps if plan.attack else ()
    columns = {
        "certified": _CERTIFIED,
        "adaptive": _ADAPTIVE,
        "attacks": (
            *_ATTACKS,
            *(Column(f"{own:g}", f"at_{own:g}", "{:.1f}".format) for own in (0.0, *eps)),
        ),
        "costs": _COSTS,
    }[kind]
    builders = {
        "certified": _certified,
        "adaptive": _adaptive,
        "attacks": attack_records,
        "costs": _costs,
    }
    empty = dict.fromkeys(column.field for column in columns)
    records = [empty | record for record in builders[kind](space)]
    if not any(record["source"] == OURS for record in records):
        return []
    sigmas = list(dict.fromkeys(record["sigma"] for record in records))
    blocks = [sigmas.index(record["sigma"]) for record in records]
    notes = [_ABOUT[kind]] if kind in _ABOUT else []
    title = f"{plan.title} ({space.recipe})"
    return [make_table(plan.name, title, columns, records, blocks=blocks, notes=notes)]


def _certified(space: Workspace) -> Iterator[Record]:
    """Certified accuracy and ACR; the lead is over the envelope of the ensemble's candidates."""
    for sigma, run in complete_certifications(space):
        for row in published_rows(space.plan.published, sigma):
            shares = dict(zip(DEFAULT_RADII, row["accuracies"], strict=True))
            yield _record(sigma, row["model"], PAPER, shares, row["acr"])
        if candidates := [row for name in run.config.members for row in run.of(name)]:
            yield from (_measured(sigma, row) for row in build_rows(candidates))
        for ensemble in space.plan.ensembles:
            yield from _ensemble_rows(space, run, ensemble, sigma)


def _ensemble_rows(
    space: Workspace, run: CertificationRun, ensemble: Ensemble, sigma: float
) -> Iterator[Record]:
    """AVG and UE of the ensemble's candidates, the ensemble, and its other weights."""
    candidates = {name: run.of(name) for name in ensemble.members if name in run.config.members}
    own = run.of(ensemble.name)
    rows = build_rows(
        [*itertools.chain(*candidates.values()), *own],
        ensemble=ensemble.name,
        members=list(candidates),
    )
    lead = bootstrap_over_envelope(own, list(candidates.values())) if candidates else None
    for row in rows:
        if not row.is_model:
            yield _measured(sigma, row) | {"model": f"{row.model}-{len(candidates)}"}
        elif row.kind == "ensemble":
            yield _measured(sigma, row, lead)
    for method in space.plan.weigh.methods[1:]:
        others = run.of(weighting_name(ensemble.name, method, space.plan))
        (row,) = build_rows(others)
        yield _measured(sigma, row, paired_bootstrap(others, own))


def _measured(sigma: float, row: Row, lead: PairedInterval | None = None) -> Record:
    shares = {radius: 100 * own for radius, own in zip(row.radii, row.accuracies, strict=True)}
    return _record(sigma, row.model, OURS, shares, row.acr) | {"lead": lead and _interval(lead)}


def _record(
    sigma: float, model: str, source: str, shares: Mapping[float, float], acr: float
) -> Record:
    accuracies = {f"accuracy_{radius:.2f}": share for radius, share in shares.items()}
    return {"sigma": sigma, "model": model, "source": source, **accuracies, "acr": acr}


def _interval(lead: PairedInterval) -> Cell:
    text = f"{signed(lead.difference)} [{signed(lead.low)}, {signed(lead.high)}]"
    return Cell(text, lead.difference)


def _adaptive(space: Workspace) -> Iterator[Record]:
    """What early exits save and lose, for the ensemble of all candidates."""
    whole = space.plan.whole.name
    for sigma, run in complete_certifications(space):
        record = {"sigma": sigma, "model": whole}
        for row in published_rows("adaptive", sigma):
            numbers = {name: row[name] for name in ("exit", "acr", "evaluations")}
            yield {**record, "source": PAPER, **numbers}
        full = run.of(whole)
        for name, exit in run.config.exits.items():
            if name != whole and not name.startswith(f"{whole}+"):
                continue
            rows = run.of(name)
            yield {
                **record,
                "source": OURS,
                "exit": exit,
                "acr": average_certified_radius(rows),
                "lost": None if exit == "none" else _interval(paired_bootstrap(full, rows)),
                "evaluations": sum(row.member_evaluations for row in rows) / len(rows),
            }


def _costs(space: Workspace) -> Iterator[Record]:
    """Training time, size and speed of each network and ensemble; the paper's hours on its GPU."""
    for sigma in space.plan.sigmas:
        for row in published_rows("costs", sigma):
            yield {"sigma": sigma, "source": PAPER, **row, "paper_hours": row["hours"]}
        epochs = _paper_epochs(space, sigma)
        names = [*space.plan.member_names, *(own.name for own in space.plan.ensembles)]
        files = {name: cost_file(space, sigma, name) for name in names}
        known = {
            name: json.loads(file.read_text("utf-8"))
            for name, file in files.items()
            if file.is_file()
        }
        for name, row in known.items():
            if seconds := row.get("weights_seconds"):
                own = dict.fromkeys(("hours", "paper_hours"), seconds / 3600)
                yield {"sigma": sigma, "source": OURS, "model": f"weights of {name}", **own}
            members = [known[own] for own in row.get("members", ())] or [row]
            hours = {"hours": _hours(row, members), "paper_hours": _hours(row, members, epochs)}
            yield {"sigma": sigma, "source": OURS, **row, **hours}


def _paper_epochs(space: Workspace, sigma: float) -> dict[str, int]:
    """Of each network by the paper's recipe, where the plan has one."""
    if "paper" not in space.plan.recipes:
        return {}
    as_published = Workspace(space.plan, recipe="paper", out=space.out)
    return {
        name: as_published.config(candidate, sigma).epochs
        for name, candidate in space.plan.named.items()
    }


def _hours(
    row: Record, members: Sequence[Record], epochs: Mapping[str, int] | None = None
) -> float | None:
    """Of training a network, or an ensemble's members and its weights, by some recipe's epochs."""
    if epochs is None:
        epochs = {own["model"]: own["epochs"] for own in members}
    if not epochs:
        return None
    seconds = sum(own["seconds_per_epoch"] * epochs[own["model"]] for own in members)
    return float(seconds + row.get("weights_seconds", 0.0)) / 3600
