"""Exact binomial confidence bounds, rounded to the safe side. No torch here.

All bounds work with the probability of the complement, q = 1 - p: near p = 1, where good
classifiers live, p itself has no digits left in float64 while q keeps all of them.
"""

from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import special

from sween.errors import BadInput

SMALLEST_ALPHA = 1e-100
"""Far below it the inverse beta function is no longer accurate."""

Floats = npt.NDArray[np.float64]
Counts = int | npt.NDArray[np.int64] | Floats


def check_probability(name: str, value: float) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if not SMALLEST_ALPHA <= value < 1.0:
        raise BadInput(
            name,
            expected=f"a number strictly between 0 and 1, and at least {SMALLEST_ALPHA:g}",
            got=value,
            fix="try 0.001",
        )


def _checked(count: Counts, n: Counts, alpha: float) -> tuple[Floats, Floats]:
    check_probability("alpha", alpha)
    counts, totals = np.asarray(count, np.float64), np.asarray(n, np.float64)
    if np.any(totals < 1):
        raise BadInput("n", expected="at least 1 vote", got=n, fix="raise n")
    if np.any(counts < 0) or np.any(counts > totals):
        raise BadInput("count", expected="between 0 and n", got=count, fix="pass counts of n votes")
    return counts, totals


def upper_bound(count: Counts, n: Counts, alpha: float) -> Floats:
    """One-sided Clopper-Pearson upper bound on a probability.

    For `count` successes among n independent trials of probability p, P(p > bound) <= alpha,
    whatever p is (Clopper and Pearson 1934). The bound solves P(Binomial(n, bound) <= count) =
    alpha, one-sided, with alpha itself and not alpha / 2. The result is widened by more than the
    error of scipy's inverse incomplete beta function (measured against 50 digits: below 1e-9
    relative up to n = 1e7, below 2e-8 up to 1e9), so it is never below the exact bound.

    Args:
        count: successes, an int or an array.
        n: trials, an int or an array that broadcasts with `count`.
        alpha: the probability with which the bound may fail, strictly between 0 and 1.

    Returns:
        float64 array of bounds in (0, 1].
    """
    counts, totals = _checked(count, n, alpha)
    counts, totals = np.broadcast_arrays(counts, totals)
    failures = totals - counts
    # betainccinv has no value at failures = 0; that entry is overwritten below.
    inverse = special.betainccinv(counts + 1, np.maximum(failures, 1), alpha)
    bound = np.where(counts == 0, -np.expm1(np.log(alpha) / totals), inverse)
    bound = np.where(failures == 0, 1.0, bound)
    widened = bound * (1 + np.where(totals <= 1e7, 1e-9, 2e-8))
    return cast(Floats, np.minimum(widened, 1.0))


def upper_bound_of_miss(count: Counts, n: Counts, alpha: float) -> Floats:
    """Upper bound on q = 1 - p from `count` votes for the class: P(1 - p > bound) <= alpha."""
    return upper_bound(np.asarray(n) - np.asarray(count), n, alpha)


def lower_bound(count: Counts, n: Counts, alpha: float) -> Floats:
    """One-sided Clopper-Pearson lower bound on p: P(p < bound) <= alpha.

    For people and records. Radii work with the bound on 1 - p, which keeps the digits lost here.
    """
    miss = upper_bound_of_miss(count, n, alpha)
    return cast(Floats, np.maximum(np.nextafter(1 - miss, 0), 0.0))
