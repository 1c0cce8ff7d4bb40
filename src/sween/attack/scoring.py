"""Judging attacked images by the smoothed classifier itself, with many votes.

An attacker sees a surrogate and single draws; whether an image is broken is for `predict` to say.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from scipy import special

from sween.attack.geometry import distances
from sween.attack.pgd import along
from sween.seeding import derive_key
from sween.smoothing import Prediction, SmoothedClassifier

TRIES = 3
"""Points on the ray of a nearest image that are scored."""


@dataclasses.dataclass(frozen=True)
class Scored:
    """An attacked image and the classifier's answer to it."""

    image: torch.Tensor
    distance: float
    answer: Prediction


class Judge:
    """Scores images under noise that no attacker has seen.

    Args:
        classifier: what is attacked.
        n: votes of an answer.
        alpha: failure probability of all answers to one attacked image together.
        seed: of the noise; different tries get independent noise.
    """

    def __init__(self, classifier: SmoothedClassifier, *, n: int, alpha: float, seed: int) -> None:
        self.classifier, self.n, self.alpha, self.seed = classifier, n, alpha, seed

    def answers(
        self, images: torch.Tensor, indices: Sequence[int], *, attempt: int, share: int = 1
    ) -> list[Prediction]:
        """`predict` on each image; `share` answers divide alpha among them."""
        if not len(images):
            return []
        seed = judge_seed(self.seed, attempt)
        return self.classifier.predict_batch(
            images, n=self.n, alpha=self.alpha / share, seed=seed, indices=indices
        )

    def score(
        self,
        images: torch.Tensor,
        attacked: torch.Tensor,
        indices: Sequence[int],
        *,
        attempt: int,
        share: int = 1,
    ) -> list[Scored]:
        """Attacked images with their answers."""
        answers = self.answers(attacked, indices, attempt=attempt, share=share)
        lengths = distances(images, attacked).tolist()
        return [
            Scored(image, distance, answer)
            for image, distance, answer in zip(attacked, lengths, answers, strict=True)
        ]

    def along_rays(
        self,
        images: torch.Tensor,
        attacked: torch.Tensor,
        labels: torch.Tensor,
        indices: Sequence[int],
        *,
        share: int = TRIES,
    ) -> list[list[Scored]]:
        """Points on each ray from image to attacked image, the later ones nearer to the border.

        The votes say how far a point lies beyond the border between two classes: at a distance s
        the probabilities are Phi(-s / sigma) and Phi(s / sigma) where the border is straight. The
        next point lies as far beyond it as an answer that is no abstention needs. `share` answers
        divide alpha among them.
        """
        sigma = self.classifier.sigma
        enough = _needed(self.n, self.alpha / share) * sigma
        points, found = attacked, [list[Scored]() for _ in indices]
        for attempt in range(TRIES):
            factors = []
            scored = self.score(images, points, indices, attempt=attempt, share=share)
            for own, point, label in zip(found, scored, labels.tolist(), strict=True):
                own.append(point)
                beyond = _beyond(point.answer.counts, label) * sigma
                wanted = max(0.0, point.distance - beyond + enough)
                factors.append(wanted / point.distance if point.distance else 1.0)
            points = along(images, points, torch.tensor(factors, device=images.device))
        return found


def judge_seed(seed: int, attempt: int) -> int:
    """The seed of an attempt's votes, from that of the attack; -1 is for images as they are."""
    return derive_key(seed, "rescore", attempt) & (2**62 - 1)


def worst(points: Sequence[Scored], label: int) -> Scored | None:
    """The nearest point that is broken, else the nearest that abstains, else any; None of none."""

    def order(point: Scored) -> tuple[bool, bool, float]:
        return not is_broken(point.answer, label), not point.answer.abstained, point.distance

    return min(points, key=order, default=None)


def is_broken(answer: Prediction, label: int) -> bool:
    """Whether an answer is another class: neither the label nor an abstention."""
    return not answer.abstained and answer.prediction != label


def _beyond(counts: Sequence[int], label: int) -> float:
    """How far beyond the border of the label's region votes place an image, in units of sigma."""
    total = sum(counts) + 1
    own = counts[label] + 0.5
    other = max(count for position, count in enumerate(counts) if position != label) + 0.5
    return float(special.ndtri(other / total) - special.ndtri(own / total)) / 2


def _needed(n: int, alpha: float) -> float:
    """How far beyond it an answer is hardly ever an abstention, in units of sigma."""
    quantile = float(special.ndtri(1 - alpha / 2))
    return 1.4 * quantile * math.sqrt(math.pi / (2 * n))
