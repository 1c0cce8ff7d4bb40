"""The certified radius to expect before a single vote is drawn.

A class with vote probability p gets Binomial(n, p) of n votes, and each count has one radius; so
mean radius and probability of abstaining are known for every p, n, alpha and sigma.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from sween.bounds.binomial import Floats, check_probability
from sween.bounds.radius import (
    check_sigma,
    fewest_certified_votes,
    noise_level,
    radius_cohen,
    radius_two_class,
)
from sween.errors import BadInput
from sween.seeding import numpy_generator
from sween.theory import inputs

LARGEST_N = 10**9
"""Up to here the rounding of the confidence bounds has been checked."""

DRAWS = 20_000
"""Simulated pairs of counts for the two-class bound."""

MOST_CELLS = 4096
"""Counts are summed one by one up to this many in reach, in cells of equal width beyond."""

SUM_TOLERANCE = 1e-12
"""How far p + runner_up may exceed 1 by rounding: .7 + .2 + .1 style sums."""


@dataclass(frozen=True)
class Outlook:
    """What one bound promises.

    Attributes:
        expected: the mean radius, an abstention counting as 0.
        abstain_probability: the probability of radius 0.
        asymptotic: the radius with endless votes; 0 where even those abstain.
        largest: the radius when all n votes fall on the class.
        draws: how many counts were simulated; 0 when all were summed.
        standard_error: of `expected`, from the draws.
    """

    expected: float
    abstain_probability: float
    asymptotic: float
    largest: float
    draws: int = 0
    standard_error: float = 0.0


@dataclass(frozen=True)
class ExpectedRadius:
    """The outlook of Cohen's bound and, where a runner-up was given, of the two-class bound."""

    p: float
    n: int
    alpha: float
    sigma: float
    runner_up: float | None
    cohen: Outlook
    two_class: Outlook | None


def expected_radius(
    p: float,
    n: int,
    *,
    alpha: float,
    sigma: float,
    runner_up: float | None = None,
    seed: int = 0,
) -> ExpectedRadius:
    """The mean certified radius of a class with vote probability p over n votes.

    Cohen's bound needs the class's own count, Binomial(n, p), and is summed. The two-class bound
    needs the largest count among the other classes too. That count is taken to be the runner-up's
    own: the rest of the probability, 1 - p - runner_up, is assumed to be split over classes too
    small to overtake it in n votes. Its mean is over 20,000 seeded draws of both counts.

    Args:
        p: probability of a vote for the class, in (0, 1].
        n: votes, at most 1e9.
        alpha: failure probability of the certificate.
        sigma: noise level.
        runner_up: probability of the second class; None for Cohen's bound alone.
        seed: of the simulated counts; only used with a runner-up.
    """
    inputs.vote_probability("p", p)
    votes = inputs.whole("n", n, at_most=LARGEST_N)
    check_probability("alpha", alpha)
    check_sigma(sigma)
    if runner_up is not None:
        _check_runner_up(p, runner_up)
    cohen = _outlook_cohen(p, votes, alpha, sigma)
    two_class = (
        None if runner_up is None else _outlook_two_class(p, runner_up, votes, alpha, sigma, seed)
    )
    return ExpectedRadius(p, votes, alpha, sigma, runner_up, cohen, two_class)


def _check_runner_up(p: float, runner_up: float) -> None:
    inputs.vote_probability("runner_up", runner_up, zero_allowed=True)
    if runner_up > p or p + runner_up > 1 + SUM_TOLERANCE:
        raise BadInput(
            "runner_up",
            expected=f"at most p = {p} and at most 1 - p",
            got=runner_up,
            fix="pass the probability of the second most likely class",
        )


def _outlook_cohen(p: float, n: int, alpha: float, sigma: float) -> Outlook:
    first, last = _cells(n, 1 - p, MOST_CELLS)
    # A cell of many counts is below 0.01 standard deviations wide, over which the radius is a
    # straight line: its mean over the cell is that of the two ends, to 1e-9 sigma.
    ends = np.stack([first, last]) if np.any(first < last) else first[np.newaxis]
    radii = radius_cohen(n - ends, n, alpha=alpha, sigma=sigma).mean(axis=0)
    mass = _probability_up_to(last, n, p) - _probability_up_to(first - 1, n, p)
    most_misses = n - fewest_certified_votes(n, alpha)
    abstain = (
        1.0 if most_misses < 0 else float(special.betainc(most_misses + 1, n - most_misses, 1 - p))
    )
    return Outlook(
        expected=float(radii @ mass),
        abstain_probability=abstain,
        asymptotic=noise_level(sigma) * max(float(special.ndtri(p)), 0.0),
        largest=float(radius_cohen(n, n, alpha=alpha, sigma=sigma)),
    )


def _cells(n: int, q: float, most: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last number of misses of each cell; all n + 1 numbers where `most` allows.

    Otherwise 12 standard deviations and 40 more to both sides of the mean: by Bernstein's
    inequality the two tails left out weigh less than 1e-25 for every n and q, and a radius below
    10 sigma makes nothing of that.
    """
    reach = 12 * math.sqrt(n * q * (1 - q)) + 40
    low, high = max(0, math.floor(n * q - reach)), min(n, math.ceil(n * q + reach))
    if n < most:
        low, high = 0, n
    count = min(high - low + 1, most)
    edges = low + (high + 1 - low) * np.arange(count + 1, dtype=np.int64) // count
    return edges[:-1], edges[1:] - 1


def _probability_up_to(misses: np.ndarray, n: int, p: float) -> Floats:
    """P(Binomial(n, 1 - p) <= misses), through the incomplete beta function."""
    inside = np.clip(misses, 0, n - 1)
    below = special.betainc((n - inside).astype(np.float64), inside + 1.0, p)
    return np.where(misses < 0, 0.0, np.where(misses >= n, 1.0, below))


def _outlook_two_class(
    p: float, runner_up: float, n: int, alpha: float, sigma: float, seed: int
) -> Outlook:
    generator = numpy_generator(seed, "expected-radius")
    counts = generator.binomial(n, p, size=DRAWS)
    share = min(runner_up / (1 - p), 1.0) if p < 1 else 0.0
    rivals = generator.binomial(n - counts, share)
    radii = radius_two_class(counts, rivals, n, alpha=alpha, sigma=sigma)
    margin = float(special.ndtri(p)) - float(special.ndtri(runner_up))
    return Outlook(
        expected=float(radii.mean()),
        abstain_probability=float((radii == 0).mean()),
        asymptotic=noise_level(sigma) / 2 * margin if margin > 0 else 0.0,
        largest=float(radius_two_class(n, 0, n, alpha=alpha, sigma=sigma)),
        draws=DRAWS,
        standard_error=float(np.std(radii - radii[0], ddof=1)) / math.sqrt(DRAWS),
    )
