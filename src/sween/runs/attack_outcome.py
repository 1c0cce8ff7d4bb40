"""The outcome of an attack on one image at one radius, as a row."""

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from sween.paths import AnyPath
from sween.records import ABSTAIN, Certificate, rows_file

OUTCOME_ROWS = "attacks.jsonl"

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
        outcome: `robust`: correct when clean and under attack. `broken`: correct when clean,
            misclassified under attack. `abstained`: correct when clean, abstains under attack,
            which counts as robust. `wrong`: misclassified when clean. `declined`: abstains when
            clean.
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
        gradients: fused (custom kernels), compiled or plain; after running out of memory a batch
            continues with plain ones.
        surrogate_rows: noisy images per pass of the attack, at most.
        steps: of the attack.
        sigma: noise level.
        seed: of the attack.
        model: its name.
        certified_radius: for the true class, if certificates were given; None if there is none.
        alarm: whether the image is misclassified within its certified radius.
        attacked_image: for an alarm, the attacked image: float32, little-endian, base64; None
            otherwise.
        seconds: of the image's batch, shared equally.
        run: identifies the config of the row's run; None outside a run folder.

    Example:
        See `attack_dataset`.
    """

    SCHEMA: ClassVar[int] = 2

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


def outcomes_file(folder: AnyPath) -> Path | None:
    """The folder's attacks.jsonl, plain or compressed; None if it has neither.

    Example:
        See `attack_dataset`.
    """
    return rows_file(folder, OUTCOME_ROWS)


def encode_image(image: torch.Tensor) -> str:
    """An image as text, lossless."""
    values = image.detach().cpu().numpy().astype("<f4")
    return base64.b64encode(values.tobytes()).decode()


def decode_image(text: str, shape: Sequence[int]) -> torch.Tensor:
    """What `encode_image` was given.

    Example:
        >>> import torch
        >>> from sween.attack import decode_image
        >>> from sween.runs.attack_outcome import encode_image
        >>> image = torch.rand(1, 8, 8)
        >>> torch.equal(decode_image(encode_image(image), (1, 8, 8)), image)
        True
    """
    values = np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(shape)
    return torch.from_numpy(values.astype(np.float32))


def empirical_accuracy(outcomes: Sequence[AttackOutcome]) -> float:
    """Robust accuracy under attack: the fraction of images that are correct when clean and stay
    correct, or abstain, under attack.

    Example:
        See `attack_dataset`.
    """
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
    """Whether it is misclassified within the radius of its own or the given certificate.

    Example:
        See `attack_dataset`.
    """
    radius = radius_of_label(certificate, outcome.label)
    return outcome.alarm or is_alarm(outcome.outcome, outcome.distance, radius)


def without_attack(outcomes: Sequence[AttackOutcome]) -> list[AttackOutcome]:
    """The outcomes at radius 0, that is on clean images, from those at the smallest radius.

    Args:
        outcomes: of one attack on one model.

    Example:
        See `attack_dataset`.
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
