"""Judging attacked images by the smoothed classifier itself, with many votes.

An attack only sees a surrogate with few noise samples; `predict` decides whether it succeeded.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from scipy import special

from sween.attack.geometry import distances
from sween.attack.pgd import along
from sween.runs.attack_settings import CLEAN, TRIES, judge_seed
from sween.smoothing import Prediction, SmoothedClassifier


@dataclasses.dataclass(frozen=True)
class Scored:
    """An attacked image and the smoothed classifier's prediction on it."""

    image: torch.Tensor
    distance: float
    answer: Prediction


class Judge:
    """Predicts on attacked images with noise that the attack has not seen.

    Args:
        classifier: the attacked classifier.
        n: votes per prediction.
        alpha: failure probability of all predictions on attacked versions of one image together.
        seed: of the noise, which is independent for each attempt.
        share: how many predictions divide alpha among them.

    Example:
        >>> import sween
        >>> from sween.attack import Judge
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> judge = Judge(smoothed, n=200, alpha=0.001, seed=0)
        >>> answers = judge.predict(digits.images([1, 2]), [1, 2])
        >>> answers[0].prediction == digits.label(1)
        True
    """

    def __init__(
        self, classifier: SmoothedClassifier, *, n: int, alpha: float, seed: int, share: int = TRIES
    ) -> None:
        self.classifier, self.n, self.alpha = classifier, n, alpha
        self.seed, self.share = seed, share

    def predict(
        self, images: torch.Tensor, indices: Sequence[int], *, attempt: int = CLEAN
    ) -> list[Prediction]:
        """Predictions of one attempt; that on the clean image has alpha to itself."""
        if not len(images):
            return []
        return self.classifier.predict_batch(
            images,
            n=self.n,
            alpha=self.alpha if attempt == CLEAN else self.alpha / self.share,
            seed=judge_seed(self.seed, attempt),
            indices=indices,
        )

    def score(
        self, images: torch.Tensor, attacked: torch.Tensor, indices: Sequence[int], *, attempt: int
    ) -> list[Scored]:
        """Attacked images with their predictions."""
        predictions = self.predict(attacked, indices, attempt=attempt)
        lengths = distances(images, attacked).tolist()
        return [Scored(*each) for each in zip(attacked, lengths, predictions, strict=True)]

    def along_rays(
        self,
        images: torch.Tensor,
        attacked: torch.Tensor,
        labels: torch.Tensor,
        indices: Sequence[int],
    ) -> list[list[Scored]]:
        """Points on each ray from image to attacked image, moving towards the decision boundary.

        The votes tell how far a point lies beyond the boundary between two classes: at distance s
        the probabilities are Phi(-s / sigma) and Phi(s / sigma) if the boundary is flat. The next
        point lies just far enough beyond it not to abstain.
        """
        sigma = self.classifier.sigma
        enough = _needed(self.n, self.alpha / self.share) * sigma
        points, found = attacked, [list[Scored]() for _ in indices]
        for attempt in range(TRIES):
            factors = []
            scored = self.score(images, points, indices, attempt=attempt)
            for own, point, label in zip(found, scored, labels.tolist(), strict=True):
                own.append(point)
                beyond = _beyond(point.answer.counts, label) * sigma
                wanted = max(0.0, point.distance - beyond + enough)
                factors.append(wanted / point.distance if point.distance else 1.0)
            points = along(images, points, torch.tensor(factors, device=images.device))
        return found


def worst(points: Sequence[Scored], label: int) -> Scored | None:
    """The nearest misclassified point, else the nearest abstention, else the nearest point."""

    def order(point: Scored) -> tuple[bool, bool, float]:
        return not is_broken(point.answer, label), not point.answer.abstained, point.distance

    return min(points, key=order, default=None)


def is_broken(answer: Prediction, label: int) -> bool:
    """Whether a prediction is wrong: neither the label nor an abstention."""
    return not answer.abstained and answer.prediction != label


def _beyond(counts: Sequence[int], label: int) -> float:
    """How far beyond the label's decision boundary votes place an image, in units of sigma."""
    total = sum(counts) + 1
    own = counts[label] + 0.5
    other = max(count for position, count in enumerate(counts) if position != label) + 0.5
    return float(special.ndtri(other / total) - special.ndtri(own / total)) / 2


def _needed(n: int, alpha: float) -> float:
    """How far beyond it a prediction hardly ever abstains, in units of sigma."""
    quantile = float(special.ndtri(1 - alpha / 2))
    return 1.4 * quantile * math.sqrt(math.pi / (2 * n))
