"""The certified radius to expect, before a single vote is drawn.

A class with vote probability p gets Binomial(n, p) of n votes, and each count has one radius, so
the mean radius and the probability of abstention follow from p, n, alpha and sigma.
"""

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
from scipy import special

from sween.bounds.binomial import check_probability
from sween.bounds.radius import (
    fewest_certified_votes,
    noise_level,
    radius_cohen,
    radius_two_class,
)
from sween.errors import BadInput
from sween.records import format_radius
from sween.seeding import numpy_generator
from sween.theory.inputs import as_written, checked
from sween.theory.theorem2 import plain, rounded_up

DRAWS = 20_000
"""Simulated pairs of counts for the two-class bound."""

MOST_CELLS = 4096
"""Counts are summed one by one up to this many in reach, in cells of equal width beyond."""


@dataclass(frozen=True)
class Outlook:
    """What one bound promises.

    Attributes:
        expected: the mean radius, an abstention counting as 0.
        abstain_probability: the probability of radius 0.
        asymptotic: the limit of the radius as n grows; 0 where it abstains.
        largest: the radius when all n votes fall on the class.
        standard_error: of `expected`; None where all counts were summed, not simulated.
    """

    expected: float
    abstain_probability: float
    asymptotic: float
    largest: float
    standard_error: float | None = None

    def __str__(self) -> str:
        abstain, error = self.abstain_probability, ""
        chance = "below 1e-6" if abstain < 1e-6 else rounded_up(Decimal(abstain))
        if self.standard_error is not None:
            error = f"   standard error {self.standard_error:.1g}"
            chance = f"{abstain * DRAWS:,.0f} of {DRAWS:,} draws"
        return (
            f"    expected radius           {_down(self.expected)}{error}\n"
            f"    probability of abstaining {chance}\n"
            f"    limit of infinite votes   {_down(self.asymptotic)}\n"
            f"    largest possible with n   {_down(self.largest)}"
        )


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

    def __str__(self) -> str:
        p, alpha, sigma = (plain(as_written(x)) for x in (self.p, self.alpha, self.sigma))
        rival = (
            "" if self.runner_up is None else f"runner-up = {plain(as_written(self.runner_up))}, "
        )
        text = (
            f"expected certified radius: p = {p}, {rival}n = {self.n:,}, alpha = {alpha}, "
            f"sigma = {sigma}\n  Cohen's bound\n{self.cohen}"
        )
        if self.two_class is None:
            return text
        return (
            f"{text}\n  two-class bound\n{self.two_class}\n"
            "  assumes that all other classes are too small to overtake the runner-up"
        )


def expected_radius(
    p: float, n: int, *, alpha: float, sigma: float, runner_up: float | None = None, seed: int = 0
) -> ExpectedRadius:
    """The mean certified radius of a class with vote probability p over n votes.

    Cohen's bound needs the class's own count, Binomial(n, p), and is summed. The two-class bound
    needs the largest count among the other classes too, which is taken to be the runner-up's: the
    rest of the probability, 1 - p - runner_up, is assumed to be split over classes too small to
    overtake it in n votes. Its mean is over 20,000 seeded draws of both counts.

    Args:
        p: probability of a vote for the class, in (0, 1].
        n: votes, at most 1e9.
        alpha: failure probability of the certificate.
        sigma: noise level.
        runner_up: probability of the second class; None for Cohen's bound alone.
        seed: of the simulated counts; only used with a runner-up.

    Example:
        >>> from sween.theory import expected_radius
        >>> outlook = expected_radius(0.9, 100_000, alpha=0.001, sigma=0.5).cohen
        >>> round(outlook.expected, 4), round(outlook.asymptotic, 4)
        (0.6324, 0.6408)
    """
    checked(p=p, n=n)
    check_probability("alpha", alpha)
    noise_level(sigma)  # refuses what is not one
    if runner_up is None:
        two_class = None
    else:
        checked(runner_up=runner_up)
        if runner_up > p or p + runner_up > 1 + 1e-12:  # .7 + .2 + .1 may exceed 1 by rounding
            fix = "pass the probability of the second most likely class"
            expected = f"at most p = {p} and at most 1 - p"
            raise BadInput("runner_up", expected=expected, got=runner_up, fix=fix)
        two_class = _two_class(p, runner_up, n, alpha, sigma, seed)
    return ExpectedRadius(p, n, alpha, sigma, runner_up, _cohen(p, n, alpha, sigma), two_class)


def _cohen(p: float, n: int, alpha: float, sigma: float) -> Outlook:
    first, last = cells(n, 1 - p, MOST_CELLS)
    # A cell of many counts is below 0.01 standard deviations wide, over which the radius is a
    # straight line: its mean over the cell is that of the two ends, to 1e-9 sigma.
    ends = np.stack([first, last]) if np.any(first < last) else first[np.newaxis]
    radii = radius_cohen(n - ends, n, alpha=alpha, sigma=sigma).mean(axis=0)
    # P(Binomial(n, 1 - p) <= misses) before, between and after the cells.
    misses = np.append(first[0] - 1, last)
    below = special.betainc(n - np.clip(misses, 0, n - 1), np.clip(misses, 0, n - 1) + 1.0, p)
    below = np.where(misses < 0, 0.0, np.where(misses >= n, 1.0, below))
    most_misses = n - fewest_certified_votes(n, alpha)
    abstain = 1.0 if most_misses < 0 else special.betainc(most_misses + 1, n - most_misses, 1 - p)
    return Outlook(
        expected=float(radii @ np.diff(below)),
        abstain_probability=float(abstain),
        asymptotic=noise_level(sigma) * max(float(special.ndtri(p)), 0.0),
        largest=float(radius_cohen(n, n, alpha=alpha, sigma=sigma)),
    )


def cells(n: int, q: float, most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last number of misses of each cell; all n + 1 numbers where `most` allows.

    Otherwise 12 standard deviations and 40 more to both sides of the mean: by Bernstein's
    inequality the tails left out weigh less than 1e-25, and a radius is below 10 sigma.
    """
    reach = 12 * math.sqrt(n * q * (1 - q)) + 40
    low, high = max(0, math.floor(n * q - reach)), min(n, math.ceil(n * q + reach))
    if n < most:
        low, high = 0, n
    count = min(high - low + 1, most)
    edges = low + (high + 1 - low) * np.arange(count + 1, dtype=np.int64) // count
    return edges[:-1], edges[1:] - 1


def _two_class(
    p: float, runner_up: float, n: int, alpha: float, sigma: float, seed: int
) -> Outlook:
    generator = numpy_generator(seed, "expected-radius")
    counts = generator.binomial(n, p, size=DRAWS)
    rivals = generator.binomial(n - counts, min(runner_up / (1 - p), 1.0) if p < 1 else 0.0)
    radii = radius_two_class(counts, rivals, n, alpha=alpha, sigma=sigma)
    margin = float(special.ndtri(p)) - float(special.ndtri(runner_up))
    return Outlook(
        expected=float(radii.mean()),
        abstain_probability=float((radii == 0).mean()),
        asymptotic=noise_level(sigma) / 2 * margin if margin > 0 else 0.0,
        largest=float(radius_two_class(n, 0, n, alpha=alpha, sigma=sigma)),
        standard_error=float(np.std(radii - radii[0], ddof=1)) / math.sqrt(DRAWS),
    )


def _down(radius: float) -> str:
    return "unlimited" if math.isinf(radius) else format_radius(radius, 4)
