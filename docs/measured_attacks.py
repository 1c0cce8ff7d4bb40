"""The tables of attacks: results/attacks."""

import dataclasses
import re
import tomllib
from pathlib import Path

import numpy as np
from measured_findings import load
from tables import markdown

from sween.attack import empirical_accuracy
from sween.evaluation import bootstrap_interval, certified_accuracy
from sween.report.attacked import AttackedRun, load_attacked


def attacks(results: Path, certified: str) -> str:
    """Accuracy under the attacks of results/attacks, and what results/CERTIFIED certifies.

    A cell is "certified / robust", in percent; the published rows come first.
    """
    published = tomllib.loads((results / "published" / "cifar10-attacks.toml").read_text())
    radii = published["radii"]
    lines = []
    for row in published["row"]:
        proven = row.get("certified", [None] * len(radii))
        pairs = zip(proven, row["empirical"], strict=True)
        cells = [f"{'-' if floor is None else floor} / {ceiling}" for floor, ceiling in pairs]
        lines.append([f"paper: {row['model']}", published["attack"], "-", *cells, "-"])
    # A candidate of several ensembles has the same votes in each.
    known = {
        name: run.models[name]
        for run in map(load, sorted(results.glob(re.sub(r"sween\d+", "sween*", certified))))
        for name in (*run.candidates, str(run.ensemble))
    }
    runs = [load_attacked(config.parent) for config in results.glob("attacks/*/config.toml")]
    order = ("rand", "standard", "pgd", "ddn")
    runs.sort(key=lambda run: (order.index(run.config.settings.attack), run.model.lower()))
    for run in runs:
        rows = [row for row in known[run.model] if row.index in set(run.indices)]
        assert len(rows) == len(run.indices)
        floors = certified_accuracy(rows, radii)
        cells = [
            f"{100 * floor:.1f} / {100 * empirical_accuracy(run.at(radius)):.1f}"
            if radius in run.radii
            else "-"
            for radius, floor in zip(radii, floors, strict=True)
        ]
        alarms = sum(outcome.alarm for outcome in run.outcomes)
        who = [f"ours: {run.model}", run.config.settings.attack, f"{len(run.indices):,}"]
        lines.append([*who, *cells, f"{alarms}"])
    head = ["model", "attack", "images", *(f"{radius:.2f}" for radius in radii), "alarms"]
    return markdown(head, 2, lines)


@dataclasses.dataclass(frozen=True)
class RobustLead:
    """Of one model over another in accuracy under attack, in percent, paired by image."""

    model: str
    other: str
    eps: float
    images: int
    mean: float
    low: float
    high: float

    @property
    def shown(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def robust_leads(results: Path, attack: str, model: str) -> list[RobustLead]:
    """Of an ensemble over every smaller model that was attacked on the same images.

    At every size, 0 is without an attack.
    """
    runs = {run.model: run for run in _attacked_by(results, attack)}
    ensemble = runs[model]
    leads = []
    for name, run in sorted(runs.items()):
        if name == model or not _members(run) < _members(ensemble):
            continue
        assert run.indices == ensemble.indices
        for eps in ensemble.radii:
            own, other = (
                {outcome.index: float(outcome.resists) for outcome in each.at(eps)}
                for each in (ensemble, run)
            )
            apart = np.array([100 * (own[index] - other[index]) for index in ensemble.indices])
            low, high = bootstrap_interval(apart, resamples=10_000, confidence=0.95, seed=0)
            leads.append(RobustLead(model, name, eps, len(apart), float(apart.mean()), low, high))
    return leads


def _attacked_by(results: Path, attack: str) -> list[AttackedRun]:
    return [load_attacked(folder) for folder in sorted((results / "attacks").glob(f"{attack}-*"))]


def _members(run: AttackedRun) -> set[str]:
    """Names of the networks that vote in the model that was attacked."""
    candidates = set(run.config.content["candidates"])
    return {run.model} if run.model in candidates else candidates


def attack_leads(results: Path, attack: str) -> str:
    """Each ensemble against the models that it contains, under one attack."""
    runs = _attacked_by(results, attack)
    ensembles = sorted(run.model for run in runs if len(_members(run)) > 1)
    leads = [lead for name in ensembles for lead in robust_leads(results, attack, name)]
    sizes = list(dict.fromkeys(lead.eps for lead in leads))
    by_pair = dict[tuple[str, str], list[str]]()
    for lead in leads:
        by_pair.setdefault((lead.model, lead.other), []).append(lead.shown)
    lines = [[*pair, *shown] for pair, shown in by_pair.items()]
    return markdown(["model", "over", *(f"{eps:.2f}" for eps in sizes)], 2, lines)
