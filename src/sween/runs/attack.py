"""Re-deriving every outcome of an attack from its votes, without a model."""

import base64
import binascii
import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Self

import numpy as np

from sween.bounds.decision import decide_prediction
from sween.bounds.radius import check_sigma
from sween.errors import BadInput, CheckFailed, CheckpointError, RunMismatch
from sween.paths import AnyPath
from sween.records import ABSTAIN, RowWriter, read_lines, read_rows, to_line
from sween.run_folder import read_config, run_folder, run_tag
from sween.runs.attack_outcome import (
    AttackOutcome,
    is_alarm,
    judge,
    outcomes_file,
    read_outcomes,
    to_row,
)
from sween.runs.attack_settings import (
    SURROGATE_ROWS,
    AttackSettings,
    answers_of_an_image,
    judge_seed,
)
from sween.runs.attacked_certificates import digest_of_radii
from sween.runs.certification import RESTORE, failing_the_check
from sween.runs.subject import SubjectConfig, classes_of, indices_of, subject_problems
from sween.sampling.rederive import LOST_VOTES

_CONFIG: dict[str, type | UnionType] = {
    "dataset": str,
    "images": int,
    "model": str,
    "indices": str,
    "candidates": list,
    "weights": list,
    "sigma": int | float,
    "eps": list,
    "n": int,
    "alpha": float,
    "attack": str,
    "samples": int,
    "steps": int,
    "seed": int,
    "batch_size": int,
    "certificates": str,
    "forward_rows": int,
    "precision": str,
    "noise": str,
    "gradients": str,
}
"""What rows are checked against, and its types."""

ROWS = "attacks.jsonl"

SAME_OF_ONE_IMAGE = ("label", "clean_prediction", "certified_radius")
"""Fields that an image's rows share at all radii of the attack."""

SAME_ONCE_BROKEN = ("prediction", "counts", "distance", "tries", "judge_seed")
"""A broken image is not attacked again, so its rows at larger radii repeat these fields."""


@dataclasses.dataclass(frozen=True)
class VerifiedAttack:
    """What was checked."""

    rows: int
    images: int
    broken: int
    alarms: int


@dataclasses.dataclass(frozen=True)
class AttackConfig(SubjectConfig):
    """The config of an attack run: what was attacked, and how.

    Attributes:
        content: the whole of it, as config.toml has it.
        settings: of the attack.
        indices: of the test images.
        tag: what rows of this config carry.
    """

    content: Mapping[str, Any]
    settings: AttackSettings
    indices: tuple[int, ...]
    tag: str

    @classmethod
    def of(cls, content: Mapping[str, Any], *, where: str = "config") -> Self:
        """A config whose parts fit together.

        Raises:
            CheckpointError: a setting is missing, or settings that no attack can have.
            RunMismatch: what it says of images, members and weights contradicts itself.
        """
        wrong = [name for name, kind in _CONFIG.items() if not isinstance(content.get(name), kind)]
        if wrong:
            raise CheckpointError(
                where,
                expected=f"the config of `sween attack` with {', '.join(wrong)}",
                got=", ".join(repr(content.get(name)) for name in wrong),
                fix="restore the file from its source",
            )
        names = {field.name for field in dataclasses.fields(AttackSettings)}
        values = {name: value for name, value in content.items() if name in names}
        try:
            check_sigma(content["sigma"])
            settings = AttackSettings(**values | {"eps": tuple(content["eps"])})
            tag = run_tag(content)
        except (BadInput, TypeError, ValueError) as error:
            raise CheckpointError(
                where, expected="settings that fit together", got=error, fix="restore it"
            ) from None
        problems = subject_problems(content)
        if problems:
            raise RunMismatch(where, "; ".join(problems), fix=RESTORE)
        return cls(content, settings, tuple(indices_of(content)), tag)

    @property
    def model(self) -> str:
        """The attacked model."""
        return str(self.content["model"])

    @property
    def given_certificates(self) -> bool:
        """Whether the attack was given certificates to contradict."""
        return bool(self.content["certificates"])

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """The config of a run folder."""
        return cls.of(read_config(folder), where=f"{folder}/config.toml")


@dataclasses.dataclass(frozen=True)
class AttackRun:
    """An attack run whose rows were checked; some may still be missing.

    Attributes:
        file: its rows.
        config: its config.toml.
        outcomes: in the order of the file.
    """

    file: Path
    config: AttackConfig
    outcomes: Sequence[AttackOutcome]

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """The outcomes of a folder, each of them checked.

        Each row must match its checksum, be of this run by its tag, have the settings of the
        config, and say what its votes say; rows of one image must agree with each other.

        Raises:
            CheckpointError: a config that no attack can have.
            RunMismatch: naming the first row that differs, and what differs in it.
            BadInput: rows that cannot be read.
        """
        folder = Path(folder)
        outcomes, file = read_outcomes(folder), outcomes_file(folder)
        assert file is not None  # it was read
        run = cls(file, AttackConfig.read(folder), outcomes)
        content = run.config.content
        # The data set's own number if it is known; else all rows must have that of the first.
        classes = classes_of(content) or (len(outcomes[0].counts) if outcomes else 2)
        expected = _Expected.of(run.config, classes)
        texts = zip(read_rows(file), read_lines(file), strict=False)
        for place, (outcome, (row, line)) in enumerate(zip(outcomes, texts, strict=True)):
            try:
                problems = list(_problems(outcome, content, expected))
            except (BadInput, TypeError, ValueError, IndexError) as error:
                problems = [str(error)]
            if to_line(row) != line:
                problems.append("the text is not as sween writes this row")
            if problems:
                raise RunMismatch(run.where(place), "; ".join(problems), fix=RESTORE)
        for place, finding in _disagreements(outcomes):
            raise RunMismatch(run.where(place), finding, fix=RESTORE)
        certified, radii = content.get("certified"), certified_radii(outcomes)
        if certified is not None and len(radii) == len(run.config.indices):
            found = digest_of_radii(radii)
            if found != certified:
                raise RunMismatch(
                    str(file),
                    f"the certified radii are not those that the attack was given ({found}, the "
                    f"run's config says {certified})",
                    fix=RESTORE,
                )
        return run

    def check_complete(self) -> None:
        """Whether every image has a row at every radius.

        Raises:
            CheckFailed: naming the first that is missing.
        """
        seen = {(outcome.index, outcome.eps) for outcome in self.outcomes}
        keys = [(i, eps) for i in sorted(self.config.indices) for eps in self.config.settings.eps]
        missing = [key for key in keys if key not in seen]
        if missing:
            index, eps = missing[0]
            raise CheckFailed(
                f"{self.file}: {len(missing)} of {len(keys)} rows are missing, the first that of "
                f"index {index} at {eps}; run the same `sween attack` again to finish"
            )

    def where(self, place: int) -> str:
        """The line of a row, in words."""
        return f"{self.file}, line {place + 1} (index {self.outcomes[place].index})"


def verify_attacks(folder: AnyPath) -> VerifiedAttack:
    """Check each row against its checksum, its own votes, the run's config and the other rows.

    The answer and the outcome are derived from the counts again, and the alarm from distance and
    certified radius. What votes cannot prove is guarded by the checksum alone: the label, the
    distance, the answer without an attack where the row has an attacked image, and the time. Nor
    can a folder prove that its votes were ever cast.

    Raises:
        CheckFailed: naming the first row that differs and what differs in it.
    """
    folder = Path(folder)
    with failing_the_check():
        run = AttackRun.read(folder)
    run.check_complete()
    return VerifiedAttack(
        rows=len(run.outcomes),
        images=len({outcome.index for outcome in run.outcomes}),
        broken=sum(outcome.outcome == "broken" for outcome in run.outcomes),
        alarms=sum(outcome.alarm for outcome in run.outcomes),
    )


def certified_radii(outcomes: Sequence[AttackOutcome]) -> dict[int, float | None]:
    """The certified radius of each image that has a row."""
    return {outcome.index: outcome.certified_radius for outcome in outcomes}


@dataclasses.dataclass(frozen=True)
class _Expected:
    """What a config implies for every row, computed once."""

    tag: str
    indices: frozenset[int]
    eps: frozenset[float]
    shares: frozenset[int]
    """How many predictions may share alpha: two numbers, since the image height is not known."""
    clean_seed: int
    seeds: frozenset[int]
    classes: int

    @classmethod
    def of(cls, config: AttackConfig, classes: int) -> Self:
        settings = config.settings
        shares = {answers_of_an_image(settings, classes=classes, rows=rows) for rows in (1, 999)}
        return cls(
            config.tag,
            frozenset(config.indices),
            frozenset(settings.eps),
            frozenset(shares),
            judge_seed(settings.seed, -1),
            frozenset(judge_seed(settings.seed, attempt) for attempt in range(max(shares))),
            classes,
        )


def _problems(
    outcome: AttackOutcome, config: Mapping[str, Any], expected: _Expected
) -> Iterator[str]:
    """What in a row contradicts its votes or the config."""
    for name in ("attack", "samples", "steps", "n", "alpha", "seed", "sigma", "model"):
        if getattr(outcome, name) != config.get(name):
            got, wanted = getattr(outcome, name), config.get(name)
            yield f"{name} is {got!r}, the run's config says {wanted!r}"
    if outcome.run != expected.tag:
        yield f"it belongs to a run of another config ({outcome.run}, not {expected.tag})"
    if outcome.index not in expected.indices or outcome.eps not in expected.eps:
        yield f"the row of index {outcome.index} at {outcome.eps} is not of this run"
    # With exact noise a vote may, very rarely, be lost.
    lost = LOST_VOTES if str(config["noise"]).startswith("exact") else 0
    if not outcome.n - lost <= sum(outcome.counts) <= outcome.n or min(outcome.counts) < 0:
        yield f"counts sum to {sum(outcome.counts)}, n is {outcome.n}"
        return
    classes = expected.classes
    if len(outcome.counts) != classes:
        yield f"counts are of {len(outcome.counts)} classes, {config['dataset']} has {classes}"
    if not 0 <= outcome.label < classes:
        yield f"label is {outcome.label}, not one of {classes} classes"
    if not ABSTAIN <= outcome.clean_prediction < classes:
        yield f"clean_prediction is {outcome.clean_prediction}, not one of {classes} classes"
    yield from _problems_of_tries(outcome, config, expected)
    answer, _ = decide_prediction(outcome.counts, alpha=outcome.judge_alpha, n=outcome.n)
    if outcome.prediction != answer:
        yield f"prediction is {outcome.prediction}, the votes say {answer}"
    wanted = judge(outcome.label, outcome.clean_prediction, outcome.prediction)
    if outcome.outcome != wanted:
        yield f"outcome is {outcome.outcome!r}, the answers say {wanted!r}"
    if not 0 <= outcome.distance <= outcome.eps:
        yield f"distance {outcome.distance} is not between 0 and {outcome.eps}"
    radius = outcome.certified_radius
    if radius is not None and (not config["certificates"] or radius < 0):
        yield f"certified_radius is {radius}, where no certificates were given or none is so small"
    if outcome.alarm != is_alarm(outcome.outcome, outcome.distance, outcome.certified_radius):
        yield f"alarm is {outcome.alarm}, distance and radius say otherwise"
    kept = outcome.attacked_image is not None
    if kept != (outcome.alarm and outcome.tries > 0):
        yield "an alarm under attack, and nothing else, has its attacked image"
    if outcome.attacked_image is not None and not _is_image(outcome.attacked_image):
        yield "attacked_image is not an image in [0, 1]"
    if outcome.gradients not in {config["gradients"], "plain"}:
        yield f"gradients are {outcome.gradients!r}, the run's config says {config['gradients']!r}"
    if outcome.surrogate_rows not in {SURROGATE_ROWS >> halvings for halvings in range(13)}:
        yield f"surrogate_rows is {outcome.surrogate_rows}, not {SURROGATE_ROWS} or a halving of it"
    if outcome.seconds < 0:
        yield f"seconds is {outcome.seconds}, below 0"


def _problems_of_tries(
    outcome: AttackOutcome, config: Mapping[str, Any], expected: _Expected
) -> Iterator[str]:
    """Whether the number of predictions that share alpha, and their seeds, fit this attack."""
    if outcome.judge_alpha != outcome.alpha / max(1, outcome.tries):
        yield f"judge_alpha is {outcome.judge_alpha}, not alpha over {outcome.tries}"
    if outcome.tries == 0:
        if outcome.judge_seed != expected.clean_seed:
            yield f"judge_seed is {outcome.judge_seed}, not that of answers without an attack"
        if outcome.distance != 0:
            yield f"distance is {outcome.distance} of an image that was not attacked"
        if not config["certificates"] and outcome.prediction != outcome.clean_prediction:
            yield (
                f"clean_prediction is {outcome.clean_prediction}, the votes without an attack say "
                f"{outcome.prediction}"
            )
        return
    if outcome.tries not in expected.shares:
        wanted = " or ".join(map(str, sorted(expected.shares)))
        yield f"tries is {outcome.tries}, this attack has {wanted} answers for an image"
    if outcome.judge_seed not in expected.seeds:
        yield f"judge_seed is {outcome.judge_seed}, which no attempt of this attack has"
    if outcome.clean_prediction != outcome.label:
        yield (
            f"tries is {outcome.tries} of an image that is answered {outcome.clean_prediction} "
            f"without an attack, not {outcome.label}"
        )


def _is_image(text: str) -> bool:
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")
    except (binascii.Error, ValueError):
        return False
    return bool(len(values)) and bool(np.all((values >= 0) & (values <= 1)))


def _disagreements(outcomes: Sequence[AttackOutcome]) -> Iterator[tuple[int, str]]:
    """Rows that contradict another row of their image, with their places."""
    times = collections.Counter((outcome.index, outcome.eps) for outcome in outcomes)
    images: dict[int, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        if times[outcome.index, outcome.eps] > 1:
            yield place, f"there are two rows of index {outcome.index} at {outcome.eps}"
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
) -> Iterator[tuple[int, str]]:
    for name in names:
        got, wanted = getattr(outcome, name), getattr(other, name)
        if got != wanted:
            yield place, f"{name} is {got}, but {wanted} at {other.eps}"


class OutcomeAppender:
    """Appends outcomes to a run that is being written; see `writing_attack`."""

    def __init__(
        self, writer: RowWriter, config: AttackConfig, outcomes: Sequence[AttackOutcome]
    ) -> None:
        self._writer, self._config = writer, config
        self.outcomes = list(outcomes)
        self._known = {(outcome.index, outcome.eps) for outcome in outcomes}

    def lacks(self, indices: Sequence[int]) -> bool:
        """Whether some of these images have no row at some radius."""
        radii = self._config.settings.eps
        return any((index, eps) not in self._known for index in indices for eps in radii)

    def append(self, outcomes: Iterable[AttackOutcome]) -> None:
        """Write outcomes, those that are not there yet, with the run's tag."""
        fresh = [
            dataclasses.replace(outcome, run=self._config.tag)
            for outcome in outcomes
            if (outcome.index, outcome.eps) not in self._known
        ]
        self._writer.append(to_row(outcome) for outcome in fresh)
        self._known |= {(outcome.index, outcome.eps) for outcome in fresh}
        self.outcomes += fresh


@contextlib.contextmanager
def writing_attack(folder: AnyPath, content: Mapping[str, Any]) -> Iterator[OutcomeAppender]:
    """An attack run to append to: new, or resumed after `AttackRun.read` has checked it.

    Args:
        folder: of the run.
        content: of its config; a folder with another one is refused.
    """
    folder = Path(folder)
    with run_folder(folder, content, rows=ROWS) as path:
        outcomes = AttackRun.read(folder).outcomes if path.exists() else ()
        config = AttackConfig.read(folder)
        with RowWriter(path) as writer:
            yield OutcomeAppender(writer, config, outcomes)
