"""Attack runs: empirical accuracy beside certified accuracy."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.attack import (
    AttackOutcome,
    contradicts,
    empirical_accuracy,
    read_outcomes,
    without_attack,
)
from sween.attack.certified import differences
from sween.data.selection import format_indices
from sween.errors import BadInput
from sween.evaluation import certified_accuracy
from sween.records import Certificate
from sween.report.grid import Cell, Table, mark_best
from sween.report.measured import MeasuredRun, read_environment
from sween.report.tables import percentage, plain_number
from sween.runs import read_config

_HEADINGS = (
    *("run", "σ", "Model", "attack", "radius", "images", "indices", "certified %", "resist %"),
    *("broken %", "abstained %", "wrong %", "declined %", "alarms"),
)
_FIELDS = (
    *("run", "sigma", "model", "attack", "radius", "images", "indices", "certified_accuracy"),
    *("empirical_accuracy", "broken", "abstained", "wrong", "declined", "alarms"),
)


@dataclasses.dataclass(frozen=True)
class AttackedRun:
    """One folder of `sween attack`, checked: every radius on the same images."""

    name: str
    config: Mapping[str, Any]
    outcomes: Sequence[AttackOutcome]
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def indices(self) -> list[int]:
        """The images, ascending."""
        return sorted({outcome.index for outcome in self.outcomes})

    @property
    def radii(self) -> list[float]:
        """0, where nobody attacks, and those attacked at, ascending."""
        return [0.0, *sorted({outcome.eps for outcome in self.outcomes})]

    def at(self, radius: float) -> list[AttackOutcome]:
        """The outcomes at one radius."""
        if radius == 0:
            return without_attack(self.outcomes)
        return [outcome for outcome in self.outcomes if outcome.eps == radius]


def load_attacked(folder: Path) -> AttackedRun:
    """Read and check a folder of `sween attack`.

    Raises:
        BadInput: no rows, damaged ones, a radius that lacks an image, or rows of other settings.
    """
    outcomes = read_outcomes(folder)
    run = AttackedRun(
        folder.resolve().name, read_config(folder), outcomes, read_environment(folder)
    )
    if not outcomes:
        raise BadInput(str(folder), expected="rows of attacks", got="none", fix="run it to the end")
    for field in ("sigma", "model", "attack", "n", "alpha", "seed", "samples"):
        values = {getattr(outcome, field) for outcome in outcomes} | {run.config.get(field)}
        if len(values) > 1:
            raise BadInput(
                f"{folder}: {field}",
                expected="the same in every row and in the config",
                got=", ".join(map(str, values)),
                fix="attack again into a fresh folder",
            )
    for radius in run.radii[1:]:  # nothing was written at 0
        if sorted(outcome.index for outcome in run.at(radius)) != run.indices:
            raise BadInput(
                f"{folder}: radius {radius:g}",
                expected="every image once",
                got=f"{len(run.at(radius))} rows of {len(run.indices)} images",
                fix="run the same `sween attack` again to finish",
            )
    return run


def names_of(attacked: Sequence[AttackedRun]) -> list[str]:
    """A name for each attack: its kind, and its folder's where a model was attacked so twice."""
    kinds = [(str(run.config["model"]), str(run.config["attack"])) for run in attacked]
    return [
        kind[1] if kinds.count(kind) == 1 else f"{kind[1]} ({run.name})"
        for kind, run in zip(kinds, attacked, strict=True)
    ]


def attack_table(attacked: Sequence[AttackedRun], runs: Sequence[MeasuredRun]) -> Table | None:
    """Certified and empirical accuracy at each radius; None without attacks.

    Certified accuracy is that of the same model and weights on the same images, where one of the
    runs has it.
    """
    rows, blocks = list[list[Cell]](), list[int]()
    for number, attack in enumerate(attacked):
        certificates = _certificates_of(attack, runs)
        for radius in attack.radii:
            outcomes = attack.at(radius)
            certified = (
                float(certified_accuracy(certificates, [radius])[0]) if certificates else None
            )
            rows.append(_row(attack, outcomes, certificates, certified))
            blocks.append(number)
    # Models are compared under one attack at one radius on the same images.
    same = [tuple(row[place].text for place in (1, 3, 4, 6)) for row in rows]
    for column in (7, 8):
        rows = mark_best(rows, column, among=same)
    return Table("attacks", _HEADINGS, _FIELDS, rows, (0, 2, 3, 6), blocks) if rows else None


def _certificates_of(attack: AttackedRun, runs: Sequence[MeasuredRun]) -> list[Certificate]:
    wanted = set(attack.indices)
    for run in runs:
        rows = run.models.get(str(attack.config.get("model")), ())
        if rows and wanted <= set(run.indices) and not differences(attack.config, run.config):
            return [row for row in rows if row.index in wanted]
    return []


def _alarms(
    attack: AttackedRun, outcomes: Sequence[AttackOutcome], certificates: Sequence[Certificate]
) -> int | None:
    """Breaks inside a certified radius; None where nothing was certified to compare with."""
    if not certificates:
        return sum(row.alarm for row in outcomes) if attack.config.get("certificates") else None
    known = {row.index: row for row in certificates}
    return sum(contradicts(row, known.get(row.index)) for row in outcomes)


def _row(
    attack: AttackedRun,
    outcomes: Sequence[AttackOutcome],
    certificates: Sequence[Certificate],
    certified: float | None,
) -> list[Cell]:
    sample, count = outcomes[0], len(outcomes)
    asked = attack.config.get("images", count)
    shares = [
        empirical_accuracy(outcomes),
        sum(outcome.outcome == "broken" for outcome in outcomes) / count,
        sum(outcome.outcome == "abstained" for outcome in outcomes) / count,
    ]
    shares += [
        sum(outcome.outcome == name for outcome in outcomes) / count
        for name in ("wrong", "declined")
    ]
    alarms = _alarms(attack, outcomes, certificates)
    return [
        Cell(attack.name, attack.name),
        Cell(plain_number(sample.sigma), sample.sigma),
        Cell(sample.model, sample.model),
        Cell(sample.attack, sample.attack),
        Cell(plain_number(sample.eps), sample.eps),
        Cell(f"{count:,}" if asked == count else f"{count:,} of {asked:,}", count),
        Cell(format_indices(attack.indices), format_indices(attack.indices)),
        Cell("-" if certified is None else percentage(certified), certified),
        *(Cell(percentage(share), share) for share in shares),
        Cell("-" if alarms is None else str(alarms), alarms),
    ]
