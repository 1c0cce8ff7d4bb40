"""Attack runs: empirical accuracy beside certified accuracy."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.attack import (
    AttackOutcome,
    contradicts,
    empirical_accuracy,
    without_attack,
)
from sween.data.selection import format_indices
from sween.errors import BadInput
from sween.evaluation import Share, certified_accuracy, share_of_images
from sween.paths import AnyPath
from sween.records import Certificate
from sween.report.grid import Cell, Table, mark_best
from sween.report.intervals import images_counted, reach
from sween.report.measured import MeasuredRun, read_environment, skipped_in_words
from sween.report.tables import percentage, plain_number
from sween.runs.attack import AttackRun
from sween.runs.attack_outcome import judge
from sween.runs.attacked_certificates import certified_name, differences

_HEADINGS = (
    *("run", "σ", "Model", "attack", "radius", "certified %", "resist %", "broken %"),
    *("abstained %", "wrong %", "declined %", "alarms"),
    *("images", "indices", "draws", "steps", "votes"),
)
_FIELDS = (
    *("run", "sigma", "model", "attack", "radius", "certified_accuracy", "empirical_accuracy"),
    *("broken", "abstained", "wrong", "declined", "alarms"),
    *("images", "indices", "samples", "steps", "n"),
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


def load_attacked(folder: AnyPath) -> AttackedRun:
    """Read and check a folder of `sween attack`.

    Raises:
        BadInput: no rows, damaged ones, a radius that lacks an image, or rows of other settings.
    """
    folder = Path(folder)
    checked = AttackRun.read(folder)
    outcomes = checked.outcomes
    run = AttackedRun(
        folder.resolve().name, checked.config.content, outcomes, read_environment(folder)
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

    Certified accuracy is that of the same model and weights on the same images, by the first of the
    runs that has it; an alarm is one by any of them.
    """
    rows, blocks = list[list[Cell]](), list[int]()
    same = list[object]()
    for number, attack in enumerate(attacked):
        certified_by = certificates_of(attack, runs)
        certificates = list(next(iter(certified_by.values()), {}).values())
        told = next((own for run in runs if (own := told_by(run, attack))), attack)
        for radius in attack.radii:
            outcomes = told.at(radius)
            certified = (
                float(certified_accuracy(certificates, [radius])[0]) if certificates else None
            )
            # As the attack has them: what one run calls wrong may be a break by another.
            alarms = alarms_of(attack, attack.at(radius), certified_by)
            rows.append(_row(attack, outcomes, certified, alarms))
            blocks.append(number)
            # Models are compared under one attack at one radius on the same images.
            images = (attack.config.get("data"), tuple(attack.indices))
            how = tuple(getattr(outcomes[0], name) for name in ("samples", "steps", "n", "sigma"))
            same.append((images, outcomes[0].attack, how, radius))
    for column in (5, 6):
        rows = mark_best(rows, column, among=same)
    return Table("attacks", _HEADINGS, _FIELDS, rows, (0, 2, 3, 13), blocks) if rows else None


def attack_notes(attacked: Sequence[AttackedRun], table: Table) -> list[str]:
    """How far the table's percentages may be from those of all images, and what was left out."""
    shares = dict[int, list[Share]]()
    for row in table.rows:
        cells = dict(zip(table.headings, row, strict=True))
        count = int(cells["images"].value or 0)
        for value in (cells["certified %"].value, cells["resist %"].value):
            if value is not None:
                share = share_of_images(round(count * float(value)), count)
                shares.setdefault(count, []).append(share)
    notes = [
        f"With {images_counted(count)}, the 95% confidence intervals (Clopper-Pearson) of "
        f"certified % and resist % reach at most {reach(own)} percentage points to either side."
        for count, own in sorted(shares.items())
    ]
    for attack in attacked:
        if (skipped := skipped_in_words(attack.config)) is not None:
            notes.append(f"{attack.name}: {skipped}")
    return notes


def certificates_of(
    attack: AttackedRun, runs: Sequence[MeasuredRun]
) -> dict[str, dict[int, Certificate]]:
    """By run and then by index, the certificates of the attacked classifier on all its images."""
    wanted, found = set(attack.indices), dict[str, dict[int, Certificate]]()
    for run in runs:
        name = certified_name(attack.config, run.config)
        rows = () if name is None else run.models.get(name, ())
        if rows and wanted <= set(run.indices) and not differences(attack.config, run.config):
            found[run.name] = {row.index: row for row in rows if row.index in wanted}
    return found


def told_by(run: MeasuredRun, attack: AttackedRun) -> AttackedRun | None:
    """An attack as a run has it that certified the attacked classifier; None of another.

    Under the name that the run certified it by, which says the exit where it has several. A
    certificate has more votes than the judge: its answer stands where it does not abstain, as it
    does when certificates are given to the attack. An image on which the judge abstained was not
    attacked: it counts as it was certified.
    """
    known = certificates_of(attack, [run]).get(run.name)
    if known is None:
        return None
    model = next(iter(known.values())).model
    outcomes = [
        dataclasses.replace(_with_answer(row, known.get(row.index)), model=model)
        for row in attack.outcomes
    ]
    return dataclasses.replace(attack, outcomes=outcomes, config={**attack.config, "model": model})


def _with_answer(row: AttackOutcome, certificate: Certificate | None) -> AttackOutcome:
    if certificate is None or certificate.abstained:
        return row
    clean = certificate.prediction
    if clean == row.clean_prediction:
        return row
    answer = row.prediction if row.clean_prediction == row.label else clean
    return dataclasses.replace(
        row,
        clean_prediction=clean,
        prediction=answer,
        outcome=judge(row.label, clean, answer),
    )


def alarms_of(
    attack: AttackedRun,
    outcomes: Sequence[AttackOutcome],
    certified_by: Mapping[str, Mapping[int, Certificate]],
) -> list[AttackOutcome] | None:
    """Breaks inside a certified radius; None where nothing was certified to compare with."""
    if not certified_by and not attack.config.get("certificates"):
        return None
    return [
        row
        for row in outcomes
        if contradicts(row, None)
        or any(contradicts(row, known.get(row.index)) for known in certified_by.values())
    ]


def _row(
    attack: AttackedRun,
    outcomes: Sequence[AttackOutcome],
    certified: float | None,
    alarms: Sequence[AttackOutcome] | None,
) -> list[Cell]:
    sample, count = outcomes[0], len(outcomes)
    asked = attack.config.get("images")
    asked = asked if isinstance(asked, int) else count
    shares = [
        empirical_accuracy(outcomes),
        sum(outcome.outcome == "broken" for outcome in outcomes) / count,
        sum(outcome.outcome == "abstained" for outcome in outcomes) / count,
    ]
    shares += [
        sum(outcome.outcome == name for outcome in outcomes) / count
        for name in ("wrong", "declined")
    ]
    return [
        Cell(attack.name, attack.name),
        Cell(plain_number(sample.sigma), sample.sigma),
        Cell(sample.model, sample.model),
        Cell(sample.attack, sample.attack),
        Cell(plain_number(sample.eps), sample.eps),
        Cell("-" if certified is None else percentage(certified), certified),
        *(Cell(percentage(share), share) for share in shares),
        Cell("-") if alarms is None else Cell(f"{len(alarms):,}", len(alarms)),
        Cell(f"{count:,}" if asked == count else f"{count:,} of {asked:,}", count),
        Cell(format_indices(attack.indices), format_indices(attack.indices)),
        *(Cell(f"{value:,}", value) for value in (sample.samples, sample.steps, sample.n)),
    ]
