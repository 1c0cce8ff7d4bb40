"""Slow, plain references for the fast code: binomial tails at 50 digits.

mpmath's incomplete beta function does not converge for large counts.
"""

from typing import Any

import mpmath

mpmath.mp.dps = 50


def binomial_lower_tail(count: int, n: int, p: Any) -> Any:
    """P(Binomial(n, p) <= count) at 50 digits, for count below n p."""
    if count >= n:
        return mpmath.mpf(1)
    p = mpmath.mpf(p)
    assert count < n * p, "the continued fraction is made for the lower tail"
    return _regularised_beta(1 - p, n - count, count + 1)


def _regularised_beta(x: Any, a: int, b: int) -> Any:
    """I_x(a, b) by Lentz's continued fraction; converges for x < (a + 1) / (a + b + 2)."""
    log_front = (
        a * mpmath.log(x)
        + b * mpmath.log1p(-x)
        - mpmath.log(a)
        - (mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b))
    )
    tiny = mpmath.mpf(10) ** -60
    numerator, denominator, value = mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf(1)
    step = 0
    while True:
        m = step // 2
        if step == 0:
            term = mpmath.mpf(1)
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        denominator = 1 / (1 + term * denominator or tiny)
        numerator = 1 + term / numerator or tiny
        change = numerator * denominator
        value *= change
        step += 1
        if abs(change - 1) < tiny:
            return mpmath.exp(log_front) * (value - 1)


def exact_upper_bound(count: int, n: int, alpha: Any) -> Any:
    """The Clopper-Pearson upper bound by bisection at 50 digits."""
    low, high = mpmath.mpf(count) / n, mpmath.mpf(1)
    while high - low > mpmath.mpf(10) ** -40:
        middle = (low + high) / 2
        if middle * n > count and binomial_lower_tail(count, n, middle) <= alpha:
            high = middle
        else:
            low = middle
    return high
