"""Base classifiers whose smoothed probability and robust radius are known exactly."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize, special, stats

from tests.smoothing.small import Computed, by_score

DIMENSION = 64


def half_space(direction: torch.Tensor, offset: float) -> Computed:
    """Class 0 where direction . x > offset; the robust radius is the distance to the plane."""
    return by_score(lambda x: x @ direction - offset)


def slab(direction: torch.Tensor, offset: float, half_width: float) -> Computed:
    """Class 0 where |direction . x - offset| < half_width."""
    return by_score(lambda x: half_width - (x @ direction - offset).abs())


def ball(centre: torch.Tensor, radius: float) -> Computed:
    """Class 0 within `radius` of a centre."""
    return by_score(lambda x: radius - (x - centre).norm(dim=1))


class KnownCase(NamedTuple):
    """The probability of class 0 at a point, and the smoothed classifier's robust radius there."""

    probability: float
    robust_radius: float


def _known(probability_at: Callable[[float], float], distance: float, end: float) -> KnownCase:
    """The prediction is 0 up to the distance at which the probability falls to 1/2."""
    probability = probability_at(distance)
    if probability_at(0.0) <= 0.5:
        return KnownCase(probability, np.inf)  # the prediction is 1 everywhere
    edge = optimize.brentq(lambda s: probability_at(s) - 0.5, 0.0, end)
    return KnownCase(probability, abs(edge - distance))


def slab_case(shift: float, half_width: float, sigma: float) -> KnownCase:
    def probability(s: float) -> float:
        """P(|s + noise| < half_width)."""
        return float(np.diff(special.ndtr(np.array([-half_width - s, half_width - s]) / sigma))[0])

    return _known(probability, shift, half_width + 10 * sigma)


def ball_case(distance: float, radius: float, sigma: float) -> KnownCase:
    def probability(s: float) -> float:
        """P(|x + noise - centre| < radius) for |x - centre| = s."""
        offset = max((s / sigma) ** 2, 1e-12)
        return float(stats.ncx2.cdf((radius / sigma) ** 2, DIMENSION, offset))

    return _known(probability, distance, radius + 10 * sigma)


def most_failures(trials: int, alpha: float) -> int:
    """More failures than this have a probability below one in a million at a true rate alpha."""
    return int(stats.binom.ppf(1 - 1e-6, trials, alpha))
