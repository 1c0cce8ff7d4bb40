"""Soft votes: the mean of a class's probability instead of its share of votes. No torch here.

The smoothed classifier g(x) = argmax_k E f_k(x + noise), f on the simplex, has Cohen's radius with
the mean E f_A in place of the vote probability (Salman et al. 2019; Zhai et al. 2020). It differs
from the classifier of hard votes: a certificate for one says nothing about the other.
"""

from collections.abc import Sequence

import numpy as np

from sween.bounds.binomial import Floats, check_probability
from sween.errors import BadInput

SCORE_STEPS = 1024
"""Scores are rounded down to multiples of 1/1024, which can only lower a lower bound."""

LARGEST_BET = 0.999
"""The largest share of the wealth that a single score can lose."""

MARGIN = 1e-6
"""More than the error of a sum of logarithms."""

_BISECTIONS = 100

Pairs = Sequence[int]
"""A histogram of scores as bin, count, bin, count, ...; bin b is the score b / 1024."""


def pairs_of(histogram: Sequence[int]) -> tuple[int, ...]:
    """The non-empty bins of a histogram, as bin, count, bin, count, ..."""
    return tuple(
        number for bin_, count in enumerate(histogram) if count for number in (bin_, int(count))
    )


def _scores(pairs: Pairs) -> tuple[Floats, Floats]:
    if (
        len(pairs) % 2
        or any(number < 0 for number in pairs)
        or max(pairs[::2], default=0) > (SCORE_STEPS)
    ):
        raise BadInput(
            "score histogram",
            expected=f"pairs of a bin up to {SCORE_STEPS} and a count",
            got=list(pairs)[:6],
            fix="restore the row from its source",
        )
    return np.asarray(pairs[::2], np.float64) / SCORE_STEPS, np.asarray(pairs[1::2], np.float64)


def soft_miss(pilot: Pairs, scores: Pairs, *, n: int, alpha: float) -> float:
    """Upper bound on 1 - E[score] by betting at a fixed rate; fails with probability <= alpha.

    If the mean were m or less, the wealth prod_i (1 + lambda (x_i - m)) of a gambler would be a
    non-negative supermartingale that starts at 1, for any lambda in [0, 1/m) fixed beforehand, so
    it would reach 1/alpha with probability at most alpha (Markov). The bound is the smallest m at
    which it does not. lambda comes from the variance of the pilot, which shares no noise with the
    scores; a poor choice costs tightness, not soundness. The wealth decreases in m, so all smaller
    means are rejected too.

    Args:
        pilot: scores of the pilot votes, which also chose the class.
        scores: fresh scores of that class.
        n: scores drawn; any missing from the histogram count as 0.
        alpha: failure probability.
    """
    check_probability("alpha", alpha)
    values, counts = _scores(scores)
    lost = n - counts.sum()
    if n < 1 or lost < 0:
        raise BadInput(
            "n",
            expected=f"at least {max(1, int(counts.sum()))}, the scores of the histogram",
            got=n,
            fix="pass the number of scores drawn",
        )
    values, counts = np.append(values, 0.0), np.append(counts, lost)
    goal = -np.log(alpha) + MARGIN
    with np.errstate(divide="ignore"):
        free_rate = float(np.sqrt(2 * goal / (n * _variance(pilot))))

    def wealth(m: float) -> float:
        rate = min(free_rate, LARGEST_BET / m)
        return float(counts @ np.log1p(rate * (values - m)))

    low, high = 0.0, float(counts @ values / n)
    if high == 0 or wealth(high * 1e-12) < goal:
        return 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle > 0 and wealth(middle) < goal:
            high = middle
        else:
            low = middle
    return min(1.0, (1 - low) * (1 + 1e-9))


def _variance(pilot: Pairs) -> float:
    values, counts = _scores(pilot)
    total = counts.sum()
    if total == 0:
        return 0.25
    mean = counts @ values / total
    return float(counts @ (values - mean) ** 2 / total)
