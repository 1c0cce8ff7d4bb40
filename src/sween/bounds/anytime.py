"""Anytime-valid bounds: they hold at all looks simultaneously, so sampling can stop early.

The evidence against "p <= m" after k successes and e failures is the likelihood ratio of a uniform
mixture of alternatives above m to m itself,

    E(m) = (1-m)^-(e+1) m^-k B(e+1, k+1) I_{1-m}(e+1, k+1).

If p <= m, it is a non-negative supermartingale that starts at 1, so by Ville's inequality it ever
reaches 1/alpha with probability at most alpha, however often and whenever one looks. Everything is
computed with q = 1 - m, as in `binomial.py`, and in logarithms. No torch here.
"""

import numbers
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from scipy import special

from sween.arguments import real_number
from sween.bounds.binomial import Counts, Floats, check_probability, upper_bound_of_miss
from sween.bounds.radius import noise_level
from sween.errors import BadInput

EARLY_SHARE = 0.5
"""Share of alpha spent on stopping early; the rest goes to the exact bound at the last look."""

MARGIN, MARGIN_PER_VOTE = 1e-6, 1e-14
"""More than the error of the log evidence, measured against 50 digits; the error grows with n."""

WIDEN = 1 + 1e-9
"""More than the error of the bisection."""

STEP = 100
"""Votes per noise block, which no look splits."""

GROWTH = 1.1
"""Growth of the sample size from one look to the next."""

_BISECTIONS = 80


def log_evidence(count: Counts, n: Counts, miss: float | Floats) -> Floats:
    """log E(1 - miss): the evidence that the probability of success is above 1 - miss.

    Args:
        count: successes.
        n: trials.
        miss: 1 - m, in (0, 1].
    """
    k, total, q = (np.asarray(value, np.float64) for value in (count, n, miss))
    e = total - k
    with np.errstate(divide="ignore", invalid="ignore"):
        # xlog1py: zero successes are no evidence, even at q = 1.
        value = (
            -(e + 1) * np.log(q)
            - special.xlog1py(k, -q)
            + special.betaln(e + 1, k + 1)
            + np.log(special.betainc(e + 1, k + 1, q))
        )
    # If the incomplete beta function underflows, the evidence is negligible.
    return cast(Floats, np.where(np.isnan(value), -np.inf, value))


def margin(n: Counts) -> Floats:
    """How far the log evidence must exceed its threshold to allow for rounding."""
    return cast(Floats, np.maximum(MARGIN, MARGIN_PER_VOTE * np.asarray(n, np.float64)))


def anytime_upper_bound_of_miss(count: Counts, n: Counts, alpha: float) -> Floats:
    """Upper bound on 1 - p, valid at all looks simultaneously with probability at least 1 - alpha.

    The smallest q above e/n whose evidence reaches 1/alpha, by bisection from the conservative
    side.

    Args:
        count: successes so far.
        n: trials so far.
        alpha: the probability that the bound fails at any look.

    Example:
        >>> from sween.bounds import anytime_upper_bound_of_miss, upper_bound
        >>> float(anytime_upper_bound_of_miss(990, 1000, alpha=0.001).round(4))
        0.0285
        >>> float(upper_bound(10, 1000, alpha=0.001).round(4))
        0.024
    """
    check_probability("alpha", alpha)
    k, total = np.broadcast_arrays(np.asarray(count, np.float64), np.asarray(n, np.float64))
    low, high = np.log(np.maximum((total - k) / total, 1e-300)), np.zeros_like(k)
    wanted = -np.log(alpha) + margin(total)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = log_evidence(k, total, np.exp(middle)) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return cast(Floats, np.minimum(np.exp(high) * WIDEN, 1.0))


def miss_of_radius(radius: float | Floats, sigma: float) -> Floats:
    """The probability of all other classes at which Cohen's radius is `radius`, rounded down."""
    return cast(Floats, special.ndtr(-np.asarray(radius, np.float64) / noise_level(sigma)) / WIDEN)


def looks(largest: int) -> list[int]:
    """Sample sizes at which to look: each a tenth larger than the last, up to whole noise blocks.

    Example:
        >>> from sween.bounds import looks
        >>> looks(100_000)[:5], len(looks(100_000))
        ([100, 200, 300, 400, 500], 55)
    """
    sizes = [min(STEP, largest)]
    while sizes[-1] < largest:
        grown = -(-int(sizes[-1] * GROWTH) // STEP) * STEP
        sizes.append(min(max(grown, sizes[-1] + STEP), largest))
    return sizes


def sequential_miss(count: Counts, n: Counts, *, largest: Counts, alpha: float) -> Floats:
    """Upper bound on 1 - p at a look of a sequence that ends at `largest` votes at the latest.

    Half of alpha is spent on all looks together. The other half is spent on the exact bound at the
    last look, where the better of the two may be used: by the union bound both hold with
    probability at least 1 - alpha.
    """
    if np.any(np.asarray(n) > np.asarray(largest)):
        raise BadInput(
            "largest",
            expected="at least the votes drawn, since the exact bound may be used at one look only",
            got=largest,
            fix="pass the number of votes at which sampling would have ended",
        )
    early = anytime_upper_bound_of_miss(count, n, EARLY_SHARE * alpha)
    last = upper_bound_of_miss(count, n, (1 - EARLY_SHARE) * alpha)
    is_last = np.asarray(n) >= np.asarray(largest)
    return cast(Floats, np.where(is_last, np.minimum(early, last), early))


def settled(
    count: Counts, n: Counts, radii: Sequence[float], *, largest: int, alpha: float, sigma: float
) -> np.ndarray:
    """Whether to stop, for each of several images: every radius is certified or given up.

    A radius is given up when the evidence that p is too small for it reaches 1/alpha. Giving up
    claims nothing, so it costs no part of alpha; fixed sampling would have certified such an image
    with probability at most alpha.

    Args:
        count: votes for the class so far, per image.
        n: votes so far, per image.
        radii: to be decided.
        largest: number of votes at which to stop in any case.
        alpha: of the certificate.
        sigma: noise level.
    """
    counts, totals = np.broadcast_arrays(np.asarray(count), np.asarray(n))
    k, total = counts[..., None], totals[..., None]
    needed = miss_of_radius(np.asarray(radii), sigma)
    enough = -np.log(EARLY_SHARE * alpha) + margin(total)
    certified = (total - k < needed * total) & (log_evidence(k, total, needed) >= enough)
    hopeless = (total - k > needed * total) & (
        log_evidence(total - k, total, 1 - needed) >= -np.log(alpha)
    )
    return cast(np.ndarray, (totals >= largest) | np.all(certified | hopeless, axis=-1))


def check_radii_to_decide(radii: Sequence[float]) -> tuple[float, ...]:
    """Radii to decide, in ascending order; refuse an empty list and invalid or negative radii."""
    sound = isinstance(radii, Iterable) and all(
        isinstance(radius, numbers.Real) and not isinstance(radius, bool) for radius in radii
    )
    if not sound:
        raise BadInput(
            "radii", expected="a list of numbers", got=repr(radii), fix="pass radii=[0.5]"
        )
    values = tuple(sorted({real_number("radii", radius) for radius in radii}))
    if not values or not all(0 <= value < float("inf") for value in values):
        raise BadInput(
            "radii",
            expected="one or more radii to decide, none of them negative",
            got=list(radii) or "none",
            fix="pass a radius such as 0.5",
        )
    return values
