"""Accuracy under attack next to certified accuracy on the same images: the paper's Table 8."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from sween.attack import AttackOutcome, empirical_accuracy, without_attack
from sween.evaluation import bootstrap_interval, certified_accuracy
from sween.report.tables import Cell
from sween.reproduce.complete import complete_attack, complete_certification
from sween.reproduce.published import OURS, PAPER, Record, published_rows
from sween.reproduce.workspace import Workspace

_Outcomes = Mapping[float, Sequence[AttackOutcome]]
"""Of one model, by the size of the perturbation; 0 is without an attack."""


def attack_records(space: Workspace) -> Iterator[Record]:
    """The paper's rows, ours, and the leads of ensembles over their candidates.

    Of complete attacks only: accuracies of different images cannot be compared.
    """
    assert space.plan.attack is not None
    for sigma in space.plan.attack.sigmas or space.plan.sigmas:
        for row in published_rows("attacks", sigma):
            record = {"sigma": sigma, "model": row["model"], "source": PAPER, "kind": row["kind"]}
            yield record | _cells(row["radii"], row["accuracies"])
        attacked = dict(_attacked(space, sigma))
        yield from _accuracies(space, sigma, attacked)
        for ensemble in space.plan.ensembles:
            for member in ensemble.members:
                if ensemble.name in attacked and member in attacked:
                    own, other = attacked[ensemble.name], attacked[member]
                    record = {"model": f"{ensemble.name} over {member}", "kind": "lead"}
                    leads = [_lead(own[eps], other[eps]) for eps in own]
                    yield {"sigma": sigma, "source": OURS, **record, **_cells(own, leads)}


def _attacked(space: Workspace, sigma: float) -> Iterator[tuple[str, _Outcomes]]:
    assert space.plan.attack is not None
    for model in space.plan.attack.models:
        if (run := complete_attack(space, space.attacked(model, sigma))) is not None:
            by_eps = {
                eps: [row for row in run.rows if row.eps == eps] for eps in space.plan.attack.eps
            }
            yield model, {0.0: without_attack(run.rows), **by_eps}


def _accuracies(
    space: Workspace, sigma: float, attacked: Mapping[str, _Outcomes]
) -> Iterator[Record]:
    certified = complete_certification(space, space.certificates(sigma))
    for model, outcomes in attacked.items():
        record = {"sigma": sigma, "model": model, "source": OURS}
        if certified is not None and model in certified.config.voters:
            indices = {row.index for row in outcomes[0.0]}
            rows = [row for row in certified.of(model) if row.index in indices]
            floors = 100 * certified_accuracy(rows, list(outcomes))
            yield {**record, "kind": "certified", **_cells(outcomes, floors.tolist())}
        ceilings = [100 * empirical_accuracy(own) for own in outcomes.values()]
        yield {**record, "kind": "empirical", **_cells(outcomes, ceilings)}


def _cells(sizes: Iterable[float], values: Iterable[object]) -> Record:
    return {f"at_{size:g}": value for size, value in zip(sizes, values, strict=True)}


def _lead(own: Sequence[AttackOutcome], other: Sequence[AttackOutcome]) -> Cell:
    """In accuracy under attack on the same images, in percent, with a paired interval."""
    known = {row.index: row.resists for row in other}
    apart = 100 * np.array([float(row.resists) - float(known[row.index]) for row in own])
    low, high = bootstrap_interval(apart, resamples=10_000, confidence=0.95, seed=0)
    mean = float(apart.mean())
    return Cell(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]", mean)
