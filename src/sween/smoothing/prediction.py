"""Predictions: settings and results of `predict`."""

import bisect
import dataclasses
import functools
import warnings

from sween.arguments import real_number, whole_number
from sween.bounds.binomial import check_probability
from sween.bounds.decision import binomial_p_value
from sween.bounds.radius import check_sigma
from sween.errors import BadInput, SmallSampleWarning
from sween.records import ABSTAIN
from sween.sampling.settings import WARN_ABOVE_SHARE, check_size


def check_predict_settings(*, n: int, alpha: float, sigma: float) -> None:
    """Refuse settings under which every prediction abstains; warn where almost all will."""
    check_size("n", whole_number("n", n))
    check_probability("alpha", real_number("alpha", alpha))
    check_sigma(sigma)
    if n < 1:
        raise BadInput("n", expected="at least 1 vote", got=n, fix="try 100")
    if binomial_p_value(n, 0) > alpha:
        least = n
        while binomial_p_value(least, 0) > alpha:
            least += 1
        raise BadInput(
            f"n = {n} always abstains at alpha = {alpha}: {n} of {n} votes have the p-value "
            f"2 * 2^-{n} = {2 * 2.0**-n:.4g}, above alpha",
            fix=f"use n >= {least}",
        )
    fewest = _fewest_votes(n, alpha)
    if fewest > WARN_ABOVE_SHARE * n:
        warnings.warn(
            f"n = {n} at alpha = {alpha} answers only where at least {fewest} of {n} votes "
            f"({fewest / n:.0%}) agree; most will abstain; try n = 100",
            SmallSampleWarning,
            stacklevel=4,
        )


@functools.lru_cache
def _fewest_votes(n: int, alpha: float) -> int:
    """The fewest of n votes that predict a class, if all others go to one class."""
    majorities = range(n // 2 + 1, n + 1)  # p-values decrease
    first = bisect.bisect_left(
        majorities, -alpha, key=lambda votes: -binomial_p_value(votes, n - votes)
    )
    return majorities[first]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one image: a class or ABSTAIN, with the votes behind it.

    Attributes:
        index: of the image, the key of its noise.
        prediction: the class, or ABSTAIN (-1).
        counts: votes for each class.
        p_value: of the test that the two leading classes are equally likely.
        n: votes drawn.
        alpha: failure probability of this prediction.
        sigma: noise level.
        seed: of the noise.

    Example:
        >>> import sween, torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
        >>> _ = torch.nn.init.zeros_(network[1].weight)
        >>> network[1].bias.data = torch.tensor([0.0, 1.0])  # always class 1
        >>> smoothed = sween.SmoothedClassifier(network, sigma=0.5, num_classes=2)
        >>> prediction = smoothed.predict_one(torch.zeros(1, 8, 8), n=100)
        >>> prediction.prediction, prediction.abstained, prediction.counts
        (1, False, (0, 100))
    """

    index: int
    prediction: int
    counts: tuple[int, ...]
    p_value: float
    n: int
    alpha: float
    sigma: float
    seed: int

    @property
    def abstained(self) -> bool:
        """Whether the votes were too close to each other for an answer."""
        return self.prediction == ABSTAIN

    def __str__(self) -> str:
        """One readable line."""
        answer = "abstained" if self.abstained else f"class {self.prediction}"
        return (
            f"index {self.index}: {answer}, {max(self.counts):,} of {self.n:,} votes "
            f"(p = {self.p_value:.2g}, alpha = {self.alpha:g}, sigma = {self.sigma:g})"
        )
