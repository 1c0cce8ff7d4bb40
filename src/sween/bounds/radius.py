"""From vote counts to certified l2 radii. No torch here.

Both radii follow from Theorem 1 of the paper (Cohen et al. 2019): if under noise the base
classifier returns class A with probability at least pA and every other class with at most pB, no l2
perturbation smaller than sigma/2 * (icdf(pA) - icdf(pB)) changes the smoothed classifier's
prediction A. They assume that the votes are independent draws of one deterministic base classifier
under N(0, sigma^2 I), and that A was fixed before these votes were drawn.

Noise is drawn in float32, and so is its level: noise and radii both use `noise_level`, since sigma
itself (0.12, say) may not be representable in float32.
"""

import dataclasses
import numbers
from collections.abc import Callable
from typing import cast

import numpy as np
from scipy import special

from sween.bounds.binomial import (
    Counts,
    Floats,
    check_probability,
    upper_bound,
    upper_bound_of_miss,
)
from sween.errors import BadInput
from sween.registry import Registry

ROUND_DOWN = 1 - 1e-12
"""Covers more than the relative error of ndtri and of the arithmetic after it.

The difference of two quantiles also loses digits if they nearly cancel; `radius_two_class`
subtracts a few units in the last place of both."""

SHARE_OF_CLASS_A = 0.9
"""The two-class bound spends 90% of alpha on the class and 10% on the runner-up."""


_SIGMAS = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The smallest and largest noise level that float32 can represent."""


def check_sigma(sigma: float) -> None:
    """Refuse a noise level that is not a positive finite number in float32."""
    number = isinstance(sigma, numbers.Real) and not isinstance(sigma, bool)
    if not (number and _SIGMAS[0] <= sigma <= _SIGMAS[1]):  # NaN compares false
        raise BadInput(
            "sigma",
            expected="a positive number within float32's range, for pixels scaled to [0,1]",
            got=repr(sigma),
            fix="try 0.25, 0.5 or 1.0",
        )


def noise_level(sigma: float) -> float:
    """The float32 nearest to sigma: the level of the noise drawn, and hence of every radius."""
    check_sigma(sigma)
    return float(np.float32(sigma))


def radius_cohen(count: Counts, n: Counts, *, alpha: float, sigma: float) -> Floats:
    """Cohen's radius sigma * icdf(pA), taking pB = 1 - pA; 0 means abstain.

    With probability at least 1 - alpha over the votes, no l2 perturbation smaller than this changes
    the smoothed classifier's prediction. Abstention is decided after rounding: the bound on the
    miss probability q must be below 1/2.

    Args:
        count: votes for the class that was fixed beforehand.
        n: all votes.
        alpha: failure probability.
        sigma: noise level.

    Example:
        >>> from sween.bounds import radius_cohen
        >>> float(radius_cohen(99_000, 100_000, alpha=0.001, sigma=0.5).round(4))
        1.145
        >>> radius_cohen([50_000, 100_000], 100_000, alpha=0.001, sigma=0.5).round(4).tolist()
        [0.0, 1.9057]
    """
    return radius_of_miss(upper_bound_of_miss(count, n, alpha), sigma)


def radius_of_miss(miss: float | Floats, sigma: float) -> Floats:
    """sigma * icdf(1 - miss) for a bound on the miss probability, rounded down; 0 means abstain.

    sigma is the level of the noise drawn, `noise_level`.
    """
    level = noise_level(sigma)
    bound = np.asarray(miss, np.float64)
    return _nonnegative(-level * special.ndtri(np.minimum(bound, 0.5)), bound < 0.5)


def radius_two_class(
    count: Counts, runner_up_count: Counts, n: Counts, *, alpha: float, sigma: float
) -> Floats:
    """The radius from both the class and its runner-up; 0 means abstain.

    pA is bounded below at level 0.9 alpha; every other class is bounded above at level 0.1 alpha by
    the bound for the largest count among them. One level suffices for all of them: the true
    runner-up B is fixed once A is, and the upper bound grows with the count, so the bound for the
    largest count fails only if the bound for B's own count fails. By the union bound both hold with
    probability at least 1 - alpha. In addition pB is at most 1 - pA, which costs nothing.

    Args:
        count: votes for the class that was fixed beforehand.
        runner_up_count: the largest count among all other classes.
        n: all votes.
        alpha: failure probability.
        sigma: noise level.

    Example:
        >>> from sween.bounds import radius_cohen, radius_two_class
        >>> float(radius_two_class(6_000, 1_500, 10_000, alpha=0.001, sigma=0.5).round(4))
        0.2983
        >>> float(radius_cohen(6_000, 10_000, alpha=0.001, sigma=0.5).round(4))
        0.107
    """
    level = noise_level(sigma)
    check_probability("alpha", alpha)
    counts, rivals, totals = np.broadcast_arrays(count, runner_up_count, n)
    if np.any(counts + rivals > totals):
        raise BadInput(
            "runner_up_count",
            expected="count + runner_up_count <= n",
            got=runner_up_count,
            fix="pass counts of disjoint classes",
        )
    miss = upper_bound(totals - counts, totals, SHARE_OF_CLASS_A * alpha)
    rival = upper_bound(rivals, totals, (1 - SHARE_OF_CLASS_A) * alpha)
    rival = np.minimum(rival, miss)
    # Not if 1 - miss <= rival, with 1 - miss rounded conservatively.
    certified = np.nextafter(1 - miss, 0) > rival
    own, other = -special.ndtri(miss), -special.ndtri(rival)
    margin = own + other - 8 * np.finfo(np.float64).eps * (abs(own) + abs(other))
    return _nonnegative(level / 2 * np.where(certified, margin, 0.0), certified)


def _nonnegative(radius: Floats, certified: np.ndarray) -> Floats:
    rounded = np.where(certified, radius * ROUND_DOWN, 0.0)
    return cast(Floats, np.maximum(rounded, 0.0))


@dataclasses.dataclass(frozen=True)
class Bound:
    """A method to derive from votes a radius that holds with probability at least 1 - alpha.

    Attributes:
        name: for settings and records.
        radius: from (count, runner_up_count, n, *, alpha, sigma), scalars or arrays, to the radius;
            0 means abstain.
        class_share: the share of alpha spent on the predicted class.

    Example:
        >>> from sween.bounds import BOUNDS
        >>> float(BOUNDS["two-class"].radius(6_000, 1_500, 10_000, alpha=0.001, sigma=0.5).round(4))
        0.2983
    """

    name: str
    radius: Callable[..., Floats]
    class_share: float = 1.0


def _radius_of_class_alone(
    count: Counts, runner_up_count: Counts, n: Counts, *, alpha: float, sigma: float
) -> Floats:
    return radius_cohen(count, n, alpha=alpha, sigma=sigma)


BOUNDS = Registry(
    "bound",
    {
        "cohen": Bound("cohen", _radius_of_class_alone),
        "two-class": Bound("two-class", radius_two_class, SHARE_OF_CLASS_A),
    },
)
"""All bounds, by name."""


def register_bound(bound: Bound) -> Bound:
    """Register a bound for `certify`, the command line and `sween verify`.

    Example:
        >>> from sween.bounds import BOUNDS, Bound, radius_cohen, register_bound
        >>> def half(count, runner_up_count, n, *, alpha, sigma):
        ...     return radius_cohen(count, n, alpha=alpha, sigma=sigma) / 2
        >>> bound = register_bound(Bound("half", half))
        >>> "half" in BOUNDS, float(bound.radius(990, 5, 1000, alpha=0.001, sigma=0.5).round(4))
        (True, 0.4945)
    """
    BOUNDS.add(bound.name, bound)
    return bound


def bound_of(name: str) -> Bound:
    """The bound of that name."""
    return BOUNDS.find(name)


def level_of_class(alpha: float, bound: str) -> float:
    """The part of alpha that a bound spends on the predicted class."""
    return bound_of(bound).class_share * alpha


def smallest_certifiable_n(alpha: float, bound: str = "cohen") -> int:
    """The smallest n at which unanimous votes certify an image."""
    check_probability("alpha", alpha)
    n = 1
    while not _certifies(n, n, alpha, bound):
        n += 1
    return n


def fewest_certified_votes(
    n: int, alpha: float, bound: str = "cohen", *, radius: float = 0.0, sigma: float = 1.0
) -> int:
    """The fewest votes of n that certify if all others go to one class; n + 1 if n do not.

    With a radius, those that certify at least this radius at this noise level.
    """
    low, high = n // 2, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _certifies(middle, n, alpha, bound, radius=radius, sigma=sigma):
            high = middle
        else:
            low = middle
    return high


def _certifies(
    count: int, n: int, alpha: float, bound: str, *, radius: float = 0.0, sigma: float = 1.0
) -> bool:
    found = bound_of(bound).radius(count, n - count, n, alpha=alpha, sigma=sigma)
    return bool(0 < found >= radius)
