"""The outcome of an attack on one image at one radius, as a row."""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch

from sween.errors import BadInput
from sween.paths import AnyPath
from sween.records import ABSTAIN, Certificate, fits_type, read_rows, row_checksum

SCHEMA = 2

OUTCOMES = ("robust", "broken", "abstained", "wrong", "declined")
"""robust: correct when clean and under attack. broken: correct when clean, misclassified under
attack. abstained: correct when clean, abstains under attack, which counts as robust. wrong:
misclassified when clean. declined: abstains when clean."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackOutcome:
    """One image under one attack at one radius, judged by `predict` with n votes.

    Attributes:
        index: of the image.
        label: its true class.
        attack: rand, standard, pgd or ddn.
        eps: l2 radius that the attack may use.
        outcome: one of OUTCOMES.
        clean_prediction: the smoothed classifier's prediction on the clean image, that of the
            certificate if there is one that does not abstain; ABSTAIN is -1.
        prediction: its prediction on the attacked image.
        counts: votes on the attacked image.
        distance: l2 norm of the perturbation; 0 if the image is unchanged.
        n: votes per prediction.
        alpha: failure probability of all predictions on attacked versions of this image together.
        tries: predictions that share alpha; 0 if `prediction` is that on the clean image.
        judge_alpha: failure probability of this prediction.
        judge_seed: of the votes on the attacked image, keyed by `index`.
        samples: noise samples per gradient of the attack.
        gradients: compiled or plain; after running out of memory a batch continues with plain ones.
        surrogate_rows: noisy images per pass of the attack, at most.
        steps: of the attack.
        sigma: noise level.
        seed: of the attack.
        model: its name.
        certified_radius: of the image, if certificates were given; None if it has none.
        alarm: whether the image is misclassified within its certified radius.
        attacked_image: for an alarm, the attacked image: float32, little-endian, base64.
        seconds: of the image's batch, shared equally.
        run: tag of the run's config.
    """

    index: int
    label: int
    attack: str
    eps: float
    outcome: str
    clean_prediction: int
    prediction: int
    counts: tuple[int, ...]
    distance: float
    n: int
    alpha: float
    tries: int
    judge_alpha: float
    judge_seed: int
    samples: int
    gradients: str
    surrogate_rows: int
    steps: int
    sigma: float
    seed: int
    model: str
    certified_radius: float | None = None
    alarm: bool = False
    attacked_image: str | None = None
    seconds: float = 0.0
    run: str | None = None

    @property
    def resists(self) -> bool:
        """Correct when clean, and correct or abstaining under attack: counts as robust."""
        return self.outcome in ("robust", "abstained")


_FIELDS = tuple(field.name for field in dataclasses.fields(AttackOutcome))
_TYPES = get_type_hints(AttackOutcome)


def to_row(outcome: AttackOutcome) -> dict[str, Any]:
    """The JSON object of an outcome, checksum included."""
    row: dict[str, Any] = {"schema": SCHEMA, **dataclasses.asdict(outcome)}
    row["counts"] = list(outcome.counts)
    row["checksum"] = row_checksum(row)
    return row


def from_row(row: Mapping[str, Any], *, where: str = "row") -> AttackOutcome:
    """The outcome of a JSON object; refuses unknown fields, damaged rows and newer schemas."""
    names = {*_FIELDS, "schema", "checksum"}
    if row.get("schema") != SCHEMA or set(row) != names:
        raise BadInput(
            where,
            expected=f"an attack's row of schema {SCHEMA}",
            got=f"schema {row.get('schema')}, other fields {sorted(set(row) ^ names)}",
            fix="read it with the sween version that wrote it",
        )
    wrong = [f"{name} {row[name]!r}" for name in _FIELDS if not fits_type(row[name], _TYPES[name])]
    if wrong or row["outcome"] not in OUTCOMES:
        raise BadInput(
            f"{where}: values",
            expected=f"those of an attack, with one of {', '.join(OUTCOMES)}",
            got=", ".join(wrong) or row["outcome"],
            fix="restore the file from its source",
        )
    if row["checksum"] != row_checksum(row):
        expected, got = f"checksum {row['checksum']}", row_checksum(row)
        raise BadInput(where, expected=expected, got=got, fix="restore it from its source")
    values = {name: row[name] for name in _FIELDS}
    return AttackOutcome(**values | {"counts": tuple(row["counts"])})


def outcomes_file(folder: AnyPath) -> Path | None:
    """The folder's attacks.jsonl, or its compressed form; None where there is neither."""
    folder = Path(folder)
    for name in ("attacks.jsonl", "attacks.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def read_outcomes(path: AnyPath) -> list[AttackOutcome]:
    """All outcomes of a file or of a run folder."""
    path = Path(path)
    file = outcomes_file(path) if path.is_dir() else path
    if file is None or not file.exists():
        raise BadInput(
            str(path),
            expected="a folder with attacks.jsonl or attacks.jsonl.gz",
            got="neither",
            fix="pass a folder written by `sween attack`",
        )
    return [
        from_row(row, where=f"{file}, line {number}")
        for number, row in enumerate(read_rows(file), start=1)
    ]


def encode_image(image: torch.Tensor) -> str:
    """An image as text, lossless."""
    values = image.detach().cpu().numpy().astype("<f4")
    return base64.b64encode(values.tobytes()).decode()


def decode_image(text: str, shape: Sequence[int]) -> torch.Tensor:
    """What `encode_image` was given."""
    values = np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(shape)
    return torch.from_numpy(values.astype(np.float32))


def empirical_accuracy(outcomes: Sequence[AttackOutcome]) -> float:
    """Robust accuracy under attack: the fraction of images that are correct when clean and stay
    correct, or abstain, under attack."""
    return sum(outcome.resists for outcome in outcomes) / len(outcomes)


def is_alarm(outcome: str, distance: float, certified_radius: float | None) -> bool:
    """Whether an image is misclassified within its certified radius."""
    inside = certified_radius is not None and distance < certified_radius
    return outcome == "broken" and inside


def radius_of_label(certificate: Certificate | None, label: int) -> float | None:
    """The radius certified for the true class; None if there is none."""
    right = certificate is not None and certificate.prediction == label
    return certificate.radius if right and certificate is not None else None


def contradicts(outcome: AttackOutcome, certificate: Certificate | None) -> bool:
    """Whether it is misclassified within the radius of its own or the given certificate."""
    radius = radius_of_label(certificate, outcome.label)
    return outcome.alarm or is_alarm(outcome.outcome, outcome.distance, radius)


def without_attack(outcomes: Sequence[AttackOutcome]) -> list[AttackOutcome]:
    """The outcomes at radius 0, that is on clean images, from those at the smallest radius.

    Args:
        outcomes: of one attack on one model.
    """
    smallest = min(outcome.eps for outcome in outcomes)
    return [
        dataclasses.replace(
            outcome,
            eps=0.0,
            outcome=judge(outcome.label, outcome.clean_prediction, outcome.clean_prediction),
            prediction=outcome.clean_prediction,
            distance=0.0,
            alarm=False,
            attacked_image=None,
        )
        for outcome in outcomes
        if outcome.eps == smallest
    ]


def judge(label: int, clean: int, attacked: int) -> str:
    """The outcome, from the predictions on the clean and the attacked image."""
    if clean != label:
        return "declined" if clean == ABSTAIN else "wrong"
    if attacked == label:
        return "robust"
    return "abstained" if attacked == ABSTAIN else "broken"
