"""Exact binomial confidence bounds (Clopper-Pearson), rounded conservatively. No torch here.

All bounds use the probability of the complement, q = 1 - p: near p = 1, where good classifiers
operate, float64 has no digits left for p but keeps all of them for q.
"""

import numbers
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import special

from sween.errors import BadInput

SMALLEST_ALPHA = 1e-100
"""Far below this the inverse beta function is no longer accurate."""

FORWARD_ERROR = 1e-10
"""More than the relative error of scipy's incomplete beta function: measured against 50 digits, it
stays below 1e-10 for every alpha from SMALLEST_ALPHA to 1/2 up to n = 1e9."""

_BISECTIONS = 80
_LOWEST = 1e-30
"""Less than n times any bound: there the tail probability is 1 in float64, above every alpha."""

Floats = npt.NDArray[np.float64]
Counts = int | npt.NDArray[np.int64] | Floats


def check_probability(name: str, value: float) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (number and SMALLEST_ALPHA <= value < 1.0):
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

    For `count` successes in n independent trials with probability p, P(p > bound) <= alpha for
    every p (Clopper and Pearson 1934). The bound solves P(Binomial(n, bound) <= count) = alpha,
    one-sided, with alpha itself and not alpha / 2. The solution is widened by 1e-9 (2e-8 above
    n = 1e7). That this suffices is verified at the bound itself rather than assumed of the inverse:
    P(Binomial(n, bound) <= count) <= alpha, with a margin larger than the error of the forward
    function. If scipy's inverse fails this test, as for 999 successes in very many trials, the
    equation is solved by bisection. So the bound is never below the exact one up to n = 1e9.

    Args:
        count: successes, an int or an array.
        n: trials, an int or an array that broadcasts with `count`.
        alpha: the probability that the bound fails, strictly between 0 and 1.

    Returns:
        float64 array of bounds in (0, 1].

    Example:
        >>> from sween.bounds import upper_bound
        >>> float(upper_bound(0, 1000, alpha=0.001).round(5))
        0.00688
    """
    counts, totals = _checked(count, n, alpha)
    counts, totals = np.broadcast_arrays(counts, totals)
    bound = _inverse_tail(counts, totals, alpha)
    return cast(Floats, np.minimum(bound * (1 + _widening(totals)), 1.0))


def _widening(totals: Floats) -> Floats:
    return cast(Floats, np.where(totals <= 1e7, 1e-9, 2e-8))


def _inverse_tail(counts: Floats, totals: Floats, alpha: float) -> Floats:
    """q with P(Binomial(n, q) <= count) = alpha, accurate enough to be conservative once widened.

    It exceeds the exact bound by at most a quarter of the widening, which keeps the bounds of
    neighbouring counts in order.
    """
    failures = totals - counts
    # betainccinv is undefined at failures = 0; the closed forms below cover that and counts = 0.
    inverse = special.betainccinv(counts + 1, np.maximum(failures, 1), alpha)
    inverse = np.where(counts == 0, -np.expm1(np.log(alpha) / totals), inverse)
    inverse = np.where(failures == 0, 1.0, inverse)
    width = _widening(totals)
    safe = _tail(counts, failures, inverse * (1 + width)) <= alpha * (1 - FORWARD_ERROR)
    near = _tail(counts, failures, inverse * (1 - width / 4)) >= alpha
    wrong = (counts > 0) & (failures > 0) & ~(safe & near)  # also where the inverse is NaN
    if np.any(wrong):
        inverse = np.array(inverse)
        inverse[wrong] = _bisected(counts[wrong], totals[wrong], alpha)
    return cast(Floats, inverse)


def _tail(counts: Floats, failures: Floats, q: Floats) -> Floats:
    """P(Binomial(n, q) <= count) = 1 - I_q(count + 1, n - count), for counts below n."""
    return cast(Floats, special.betaincc(counts + 1, np.maximum(failures, 1), np.minimum(q, 1.0)))


def _bisected(counts: Floats, totals: Floats, alpha: float) -> Floats:
    """`_inverse_tail` by bisection of the forward function, ending on the conservative side."""
    failures, width = totals - counts, _widening(totals)
    low, high = np.log(_LOWEST / totals), np.zeros_like(totals)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        q = np.exp(middle)
        safe = _tail(counts, failures, q * (1 + width)) <= alpha * (1 - FORWARD_ERROR)
        safe &= _tail(counts, failures, q) <= alpha
        low, high = np.where(safe, low, middle), np.where(safe, middle, high)
    return cast(Floats, np.exp(high))


def upper_bound_of_miss(count: Counts, n: Counts, alpha: float) -> Floats:
    """Upper bound on q = 1 - p from `count` votes for the class: P(1 - p > bound) <= alpha."""
    counts, totals = _checked(count, n, alpha)
    return upper_bound(totals - counts, totals, alpha)


def lower_bound(count: Counts, n: Counts, alpha: float) -> Floats:
    """One-sided Clopper-Pearson lower bound on p: P(p < bound) <= alpha.

    For display and records. Radii use the bound on 1 - p, which keeps the digits lost here.

    Example:
        >>> from sween.bounds import lower_bound
        >>> float(lower_bound(990, 1000, alpha=0.001).round(4))
        0.976
        >>> lower_bound([900, 990, 1000], 1000, alpha=0.001).round(4).tolist()
        [0.8675, 0.976, 0.9931]
    """
    miss = upper_bound_of_miss(count, n, alpha)
    return cast(Floats, np.maximum(np.nextafter(1 - miss, 0), 0.0))
