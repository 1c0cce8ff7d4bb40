"""Attack runs: a folder of outcomes with the config that they belong to."""

import base64
import binascii
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sween.bounds.decision import decide_prediction
from sween.errors import BadInput, RunMismatch
from sween.paths import AnyPath
from sween.records import ABSTAIN
from sween.runs.attack_outcome import OUTCOME_ROWS, AttackOutcome, is_alarm, judge
from sween.runs.attack_settings import (
    CLEAN,
    SURROGATE_ROWS,
    AttackSettings,
    answers_of_an_image,
    judge_seed,
)
from sween.runs.attacked_certificates import digest_of_radii
from sween.runs.rows import RESTORE, Finding, RowRun, RunConfig, Types
from sween.runs.shards import Shard
from sween.sampling.rederive import LOST_VOTES

SAME_OF_ONE_IMAGE = ("label", "clean_prediction", "certified_radius")
"""Fields that an image's rows share at all radii of the attack."""

SAME_ONCE_BROKEN = ("prediction", "counts", "distance", "tries", "judge_seed")
"""A broken image is not attacked again, so its rows at larger radii repeat these fields."""


@dataclasses.dataclass(frozen=True)
class VerifiedAttack:
    """What was checked; `shard` is the part of the run that it is, if it is not all of it."""

    rows: int
    images: int
    broken: int
    alarms: int
    shard: Shard | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackConfig(RunConfig):
    """The config of an attack run: what was attacked, and how.

    Attributes:
        settings: of the attack.

    Keys of config.toml:
        kind (text): `attacks`.
        norm (text): `l2`, always.
        attack (text): `rand`, `standard`, `pgd` or `ddn`.
        eps (list of numbers): l2 radii, in units of pixels scaled to [0,1].
        samples (whole number): noise samples per gradient.
        steps (whole number): of pgd and ddn.
        batch_size (whole number): images attacked together.
        certificates (text): digest of the certificates given to the attack; empty without any.
        certified (text): digest of the certified radii, by image. Absent without certificates.
        gradients (text): `fused` (custom kernels), `compiled` or `plain`.

    Example:
        See `attack_dataset`.
    """

    VERB: ClassVar[str] = "attack"
    KIND: ClassVar[str] = "attacks"
    TYPES: ClassVar[Types] = {
        "eps": list,
        "alpha": float,
        "attack": str,
        "samples": int,
        "steps": int,
        "batch_size": int,
        "certificates": str,
        "gradients": str,
    }
    REPEATED: ClassVar[tuple[str, ...]] = (
        *("attack", "samples", "steps", "n", "alpha", "seed", "sigma", "model"),
    )
    UNITS: ClassVar[str] = "batches of images"

    settings: AttackSettings

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        names = {field.name for field in dataclasses.fields(AttackSettings)}
        values = {name: value for name, value in content.items() if name in names}
        return {"settings": AttackSettings(**values | {"eps": tuple(content["eps"])})}

    @property
    def parts(self) -> Sequence[float]:
        return self.settings.eps

    @property
    def units(self) -> Sequence[Sequence[int]]:
        return self.settings.batches(self.indices)

    @property
    def given_certificates(self) -> bool:
        """Whether the attack was given certificates to contradict."""
        return bool(self.content["certificates"])


class AttackRun(RowRun[AttackConfig, AttackOutcome]):
    """An attack run whose rows were checked; some may still be missing.

    `read`, `verify` and `check_complete` are as in `CertificationRun`.

    Example:
        See `attack_dataset`.
    """

    FILE: ClassVar[str] = OUTCOME_ROWS
    PART: ClassVar[str] = "eps"

    @classmethod
    def kinds(cls) -> tuple[type[AttackConfig], type[AttackOutcome]]:
        return AttackConfig, AttackOutcome

    def counts(self, row: AttackOutcome) -> Sequence[int]:
        return row.counts

    def row_problems(self) -> Iterator[list[str]]:
        content, settings = self.config.content, self.config.settings
        # Two numbers of predictions may share alpha, since the image height is not known.
        shares = {
            answers_of_an_image(settings, classes=self.classes, rows=rows) for rows in (1, 999)
        }
        seeds = {judge_seed(settings.seed, attempt) for attempt in range(max(shares))}
        for row in self.rows:
            try:
                problems = [*_vote_problems(row, content, self.classes)]
                yield [*problems, *_try_problems(row, content, shares, seeds)]
            except (BadInput, TypeError, ValueError, IndexError) as error:
                yield [str(error)]

    def disagreements(self) -> Iterator[Finding]:
        yield from _disagreements(self.rows)
        certified = self.config.content.get("certified")
        radii = {row.index: row.certified_radius for row in self.rows}
        if certified is not None and len(radii) == len(self.config.indices):
            found = digest_of_radii(radii)
            if found != certified:
                raise RunMismatch(
                    str(self.file),
                    f"the certified radii are not those that the attack was given ({found}, the "
                    f"run's config says {certified})",
                    fix=RESTORE,
                )


def verify_attacks(folder: AnyPath) -> VerifiedAttack:
    """Check each row against its checksum, its own votes, the run's config and the other rows.

    Prediction and outcome are derived from the counts again, and the alarm from distance and
    certified radius. Some fields no votes can prove, and only the checksum guards: the label, the
    distance, the clean prediction of an attacked image, and the time. Nor can a folder prove that
    its votes were ever cast.

    Raises:
        CheckFailed: names the first row that differs, and what differs in it.

    Example:
        See `attack_dataset`.
    """
    run = AttackRun.verify(folder)
    return VerifiedAttack(
        rows=len(run.rows),
        images=len(run.indices),
        broken=sum(row.outcome == "broken" for row in run.rows),
        alarms=sum(row.alarm for row in run.rows),
        shard=run.shard,
    )


def _vote_problems(row: AttackOutcome, config: Mapping[str, Any], classes: int) -> Iterator[str]:
    """What in a row contradicts its votes."""
    # With exact noise a vote may, very rarely, be lost.
    lost = LOST_VOTES if str(config["noise"]).startswith("exact") else 0
    if not row.n - lost <= sum(row.counts) <= row.n or min(row.counts) < 0:
        yield f"counts sum to {sum(row.counts)}, n is {row.n}"
        return
    if not ABSTAIN <= row.clean_prediction < classes:
        yield f"clean_prediction is {row.clean_prediction}, not one of {classes} classes"
    prediction, _ = decide_prediction(row.counts, alpha=row.judge_alpha, n=row.n)
    if row.prediction != prediction:
        yield f"prediction is {row.prediction}, the votes say {prediction}"
    outcome = judge(row.label, row.clean_prediction, row.prediction)
    if row.outcome != outcome:
        yield f"outcome is {row.outcome!r}, the predictions say {outcome!r}"
    if not 0 <= row.distance <= row.eps:
        yield f"distance {row.distance} is not between 0 and {row.eps}"
    radius = row.certified_radius
    if radius is not None and (not config["certificates"] or radius < 0):
        yield f"certified_radius is {radius}, which no certificate given to the attack has"
    if row.alarm != is_alarm(row.outcome, row.distance, radius):
        yield f"alarm is {row.alarm}, at distance {row.distance} and certified radius {radius}"
    if (row.attacked_image is not None) != (row.alarm and row.tries > 0):
        yield "an alarm under attack, and nothing else, has its attacked image"
    if row.attacked_image is not None and not _is_image(row.attacked_image):
        yield "attacked_image is not an image in [0, 1]"
    if row.gradients not in {config["gradients"], "plain"}:
        yield f"gradients are {row.gradients!r}, the run's config says {config['gradients']!r}"
    if row.surrogate_rows not in {SURROGATE_ROWS >> halvings for halvings in range(13)}:
        yield f"surrogate_rows is {row.surrogate_rows}, not {SURROGATE_ROWS} or a halving of it"
    if row.seconds < 0:
        yield f"seconds is {row.seconds}, below 0"


def _try_problems(
    row: AttackOutcome, config: Mapping[str, Any], shares: set[int], seeds: set[int]
) -> Iterator[str]:
    """Whether the number of predictions that share alpha, and their seeds, fit the attack."""
    if row.judge_alpha != row.alpha / max(1, row.tries):
        yield f"judge_alpha is {row.judge_alpha}, not alpha over {row.tries}"
    if row.tries == 0:
        if row.judge_seed != judge_seed(row.seed, CLEAN):
            yield f"judge_seed is {row.judge_seed}, not that of predictions on clean images"
        if row.distance != 0:
            yield f"distance is {row.distance} of an image that was not attacked"
        if not config["certificates"] and row.prediction != row.clean_prediction:
            yield (
                f"clean_prediction is {row.clean_prediction}, the votes on the clean image say "
                f"{row.prediction}"
            )
        return
    if row.tries not in shares:
        wanted = " or ".join(map(str, sorted(shares)))
        yield f"tries is {row.tries}, this attack makes {wanted} predictions for an image"
    if row.judge_seed not in seeds:
        yield f"judge_seed is {row.judge_seed}, which no attempt of this attack has"
    if row.clean_prediction != row.label:
        yield (
            f"tries is {row.tries}, but the clean image was misclassified as "
            f"{row.clean_prediction}, not {row.label}, and such images are not attacked"
        )


def _is_image(text: str) -> bool:
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")
    except (binascii.Error, ValueError):
        return False
    return bool(len(values)) and bool(np.all((values >= 0) & (values <= 1)))


def _disagreements(outcomes: Sequence[AttackOutcome]) -> Iterator[Finding]:
    """Rows that contradict another row of their image."""
    images: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        images.setdefault(outcome.index, []).append(place)
    for places in images.values():
        places.sort(key=lambda place: outcomes[place].eps)
        first, broken, untouched = outcomes[places[0]], None, None
        for place in places:
            outcome = outcomes[place]
            if outcome.outcome == "broken" and broken is None:
                broken = outcome
            elif broken is not None and outcome.outcome != "broken":
                yield (
                    place,
                    f"index {outcome.index} is broken at {broken.eps}, but {outcome.outcome} at "
                    f"{outcome.eps}",
                )
            elif broken is not None:
                yield from _changed(place, outcome, broken, SAME_ONCE_BROKEN)
            if outcome.tries == 0:
                untouched = untouched or outcome
                yield from _changed(place, outcome, untouched, ("prediction", "counts"))
            yield from _changed(place, outcome, first, SAME_OF_ONE_IMAGE)


def _changed(
    place: int, outcome: AttackOutcome, other: AttackOutcome, names: Sequence[str]
) -> Iterator[Finding]:
    for name in names:
        got, wanted = getattr(outcome, name), getattr(other, name)
        if got != wanted:
            yield place, f"{name} is {got}, but {wanted} at {other.eps}"
