"""Attack runs: accuracy under attack next to certified accuracy.

`attack_points` is the one computation behind the table of attacks, the figures and the page.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.attack import AttackOutcome, contradicts, without_attack
from sween.data.selection import format_indices
from sween.errors import BadInput
from sween.evaluation import Share, certified_accuracy, share_of_images
from sween.paths import AnyPath
from sween.records import Certificate
from sween.report.measured import MeasuredRun, read_environment, skipped_images
from sween.report.tables import (
    RUN_COLUMNS,
    Cell,
    Column,
    Table,
    make_table,
    percentage,
    plain_number,
    whole_number,
)
from sween.runs import AttackConfig, AttackRun
from sween.runs.attack_outcome import OUTCOMES, judge, radius_of_label
from sween.runs.attacked_certificates import certified_name, differences

_ATTACK_COLUMNS = (
    *RUN_COLUMNS,
    Column("Model", "model"),
    Column("attack", "attack"),
    Column("radius", "radius", plain_number),
    Column("certified %", "certified_accuracy", percentage, "most"),
    Column("robust %", "empirical_accuracy", percentage, "most"),
    Column("broken %", "broken", percentage),
    Column("abstained %", "abstained", percentage),
    Column("wrong %", "wrong", percentage),
    Column("declined %", "declined", percentage),
    Column("alarms", "alarms", whole_number),
    Column("images", "images", whole_number, setting=True),
    Column("indices", "indices", setting=True),
    Column("gradient samples", "samples", whole_number, setting=True),
    Column("steps", "steps", whole_number, setting=True),
    Column("votes", "n", whole_number, setting=True),
)

_ABOUT_ATTACKS = (
    "Robust % counts images that are classified correctly when clean and stay correct, or abstain, "
    "under attack: an upper bound on robust accuracy, since a failed attack proves nothing. "
    "Certified % is a lower bound. Images that are wrong or abstained on (declined) when clean are "
    "not attacked; where the attack's clean prediction abstains but a certificate does not, the "
    "certificate counts. An alarm is an adversarial example inside a certified radius."
)

_ALARM_COLUMNS = (
    Column("attack", "attack"),
    Column("Model", "model"),
    Column("image", "index", str),
    Column("radius", "radius", "{:g}".format),
    Column("distance", "distance", "{:.6g}".format),
    Column("certified", "certified_radius", "{:.6g}".format),
    Column("image kept", "image_kept"),
)


@dataclasses.dataclass(frozen=True)
class AttackedRun:
    """One folder of `sween attack`, checked: every radius on the same images.

    `certified_as` is the attacked model's name in the run that certified it, which names the exit
    where it has several.
    """

    name: str
    config: AttackConfig
    outcomes: Sequence[AttackOutcome]
    environment: Mapping[str, Any]
    certified_as: str | None = None

    @property
    def model(self) -> str:
        """The attacked model."""
        return self.certified_as or self.config.model

    @property
    def indices(self) -> list[int]:
        """The images, ascending."""
        return sorted({outcome.index for outcome in self.outcomes})

    @property
    def radii(self) -> list[float]:
        """0, where there is no attack, and those attacked at, ascending."""
        return [0.0, *sorted({outcome.eps for outcome in self.outcomes})]

    def at(self, radius: float) -> list[AttackOutcome]:
        """The outcomes at one radius."""
        if radius == 0:
            return without_attack(self.outcomes)
        return [outcome for outcome in self.outcomes if outcome.eps == radius]


@dataclasses.dataclass(frozen=True)
class AttackPoint:
    """Accuracy under attack at one radius, and what is certified there.

    Attributes:
        radius: l2 radius of the attack.
        outcomes: one for each image.
        certified: certified accuracy on these images; None without certificates.
        alarms: the adversarial examples inside a certified radius; None where nothing was
            certified to compare with.
    """

    radius: float
    outcomes: Sequence[AttackOutcome]
    certified: Share | None
    alarms: Sequence[AttackOutcome] | None

    @property
    def robust(self) -> Share:
        """Images that are classified correctly when clean and stay correct, or abstain."""
        return share_of_images(sum(row.resists for row in self.outcomes), len(self.outcomes))


def load_attacked(folder: AnyPath) -> AttackedRun:
    """Read a folder of `sween attack`; `AttackRun.read` checks every row against its votes.

    Raises:
        BadInput: no rows, damaged rows, or a radius that lacks an image.
    """
    folder = Path(folder)
    checked = AttackRun.read(folder)
    outcomes = checked.rows
    run = AttackedRun(folder.resolve().name, checked.config, outcomes, read_environment(folder))
    if not outcomes:
        raise BadInput(str(folder), expected="rows of attacks", got="none", fix="run it to the end")
    for radius in run.radii[1:]:  # nothing is written at 0
        if sorted(outcome.index for outcome in run.at(radius)) != run.indices:
            raise BadInput(
                f"{folder}: radius {radius:g}",
                expected="every image once",
                got=f"{len(run.at(radius))} rows of {len(run.indices)} images",
                fix="run the same `sween attack` again to finish",
            )
    return run


def attack_labels(attacked: Sequence[AttackedRun]) -> list[str]:
    """A name for each attack: its kind, and its folder where a model was attacked twice by it."""
    kinds = [(run.model, run.config.settings.attack) for run in attacked]
    return [
        kind[1] if kinds.count(kind) == 1 else f"{kind[1]} ({run.name})"
        for kind, run in zip(kinds, attacked, strict=True)
    ]


def attacks_on(run: MeasuredRun, attacked: Sequence[AttackedRun]) -> list[AttackedRun]:
    """The attacks on models of a run, on images that it certified, with its certified answers."""
    found = ((attack, certificates_of(attack, [run]).get(run.name)) for attack in attacked)
    return [_with_certified_answers(attack, known) for attack, known in found if known]


def attack_points(attack: AttackedRun, runs: Sequence[MeasuredRun]) -> list[AttackPoint]:
    """An attack at each radius, 0 included, with what the runs certify of the same classifier.

    Certified accuracy is that of the first run that certified all attacked images; an alarm counts
    if it contradicts any of the runs.
    """
    certified_by = certificates_of(attack, runs)
    first = next(iter(certified_by.values()), {})
    counted = _with_certified_answers(attack, first) if first else attack
    points = []
    for radius in attack.radii:
        certified = None
        if first:
            share = float(certified_accuracy(list(first.values()), [radius])[0])
            certified = share_of_images(round(share * len(first)), len(first))
        # By the attack's own clean predictions: runs may certify different classes.
        alarms = _alarms(attack, attack.at(radius), certified_by)
        points.append(AttackPoint(radius, counted.at(radius), certified, alarms))
    return points


def certificates_of(
    attack: AttackedRun, runs: Sequence[MeasuredRun]
) -> dict[str, dict[int, Certificate]]:
    """By run and then by index, the certificates of the attacked classifier on all its images.

    Raises:
        BadInput: an image with one label in the attack and another in the run.
    """
    wanted = {row.index: row.label for row in attack.outcomes}
    found = dict[str, dict[int, Certificate]]()
    for run in runs:
        configs = attack.config.content, run.config.content
        rows = run.models.get(certified_name(*configs) or "", ())
        known = {row.index: row for row in rows if row.index in wanted}
        if len(known) < len(wanted) or differences(*configs):
            continue
        for row in known.values():
            if row.label != wanted[row.index]:
                raise BadInput(
                    f"label of image {row.index} in {attack.name}",
                    expected=f"{row.label} as in {run.name}",
                    got=wanted[row.index],
                    fix="report the attack with the run that it attacked",
                )
        found[run.name] = known
    return found


def _with_certified_answers(
    attack: AttackedRun, certificates: Mapping[int, Certificate]
) -> AttackedRun:
    """An attack with the clean answers, and the model's name, of the run that certified it.

    A certificate rests on more votes than the attack's own clean prediction: its answer holds
    where it does not abstain. An image on which the attack's prediction abstained was not
    attacked: it counts as certified.
    """
    model = next(iter(certificates.values())).model
    outcomes = [
        dataclasses.replace(_with_answer(row, certificates[row.index]), model=model)
        for row in attack.outcomes
    ]
    return dataclasses.replace(attack, outcomes=outcomes, certified_as=model)


def _with_answer(row: AttackOutcome, certificate: Certificate) -> AttackOutcome:
    clean = certificate.prediction
    if certificate.abstained or clean == row.clean_prediction:
        return row
    answer = row.prediction if row.clean_prediction == row.label else clean
    outcome = judge(row.label, clean, answer)
    return dataclasses.replace(row, clean_prediction=clean, prediction=answer, outcome=outcome)


def _alarms(
    attack: AttackedRun,
    outcomes: Sequence[AttackOutcome],
    certified_by: Mapping[str, Mapping[int, Certificate]],
) -> list[AttackOutcome] | None:
    if not certified_by and not attack.config.given_certificates:
        return None
    return [
        row
        for row in outcomes
        if contradicts(row, None)
        or any(contradicts(row, known.get(row.index)) for known in certified_by.values())
    ]


def attack_table(attacked: Sequence[AttackedRun], runs: Sequence[MeasuredRun]) -> Table | None:
    """Certified accuracy and accuracy under attack at each radius; None without attacks."""
    records, blocks, rivals, notes = list[dict[str, Any]](), list[int](), list[object](), []
    for number, attack in enumerate(attacked):
        for point in attack_points(attack, runs):
            records.append(_attack_record(attack, point))
            blocks.append(number)
            # Models are compared under one attack at one radius on the same images.
            same = ("attack", "samples", "steps", "n", "sigma", "radius", "indices")
            pixels = attack.config.fingerprints.get("data")
            rivals.append((pixels, *(records[-1][name] for name in same)))
        notes += [f"{attack.name}: {skipped}" for skipped in skipped_images(attack.config)]
    if not records:
        return None
    return make_table(
        "attacks",
        "Certified accuracy and accuracy under attack",
        _ATTACK_COLUMNS,
        records,
        blocks=blocks,
        rivals=rivals,
        notes=[*notes, _ABOUT_ATTACKS],
    )


def _attack_record(attack: AttackedRun, point: AttackPoint) -> dict[str, Any]:
    sample, count = point.outcomes[0], len(point.outcomes)
    outcomes = [row.outcome for row in point.outcomes]
    asked = len(attack.config.indices)
    return {
        **{name: getattr(sample, name) for name in ("sigma", "model", "attack", "samples")},
        **{name: outcomes.count(name) / count for name in OUTCOMES},
        "run": attack.name,
        "radius": point.radius,
        "certified_accuracy": point.certified,
        "empirical_accuracy": point.robust,
        "alarms": None if point.alarms is None else len(point.alarms),
        "images": count if asked == count else Cell(f"{count:,} of {asked:,}", count),
        "indices": format_indices(attack.indices),
        "steps": sample.steps,
        "n": sample.n,
    }


def alarm_table(attacked: Sequence[AttackedRun], runs: Sequence[MeasuredRun]) -> Table | None:
    """Every alarm; None without any.

    The adversarial example is kept in its row where the attack was given the certificate; where
    not, `sween attack --certificates` on that image finds it again.
    """
    records = []
    for attack in attacked:
        certified_by = certificates_of(attack, runs)
        for row in _alarms(attack, attack.outcomes, certified_by) or ():
            radii = [
                radius_of_label(own.get(row.index), row.label) for own in certified_by.values()
            ]
            known = [radius for radius in (row.certified_radius, *radii) if radius is not None]
            records.append(
                {
                    "attack": attack.name,
                    "model": row.model,
                    "index": row.index,
                    "radius": row.eps,
                    "distance": row.distance,
                    "certified_radius": max(known, default=None),
                    "image_kept": "no" if row.attacked_image is None else "yes",
                }
            )
    return make_table("alarms", "Alarms", _ALARM_COLUMNS, records) if records else None
