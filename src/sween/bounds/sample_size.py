"""How many votes an image gets, chosen from its pilot votes. No torch here.

The sizes are functions of the pilot (selection) votes alone. The votes that are then bounded are
fresh and independent of them, so given the size each bound holds as for a size fixed in advance:
the full alpha is spent on it, whatever the rule for choosing sizes is.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from sween.bounds.anytime import STEP
from sween.bounds.binomial import Floats, lower_bound, upper_bound
from sween.bounds.radius import radius_of_miss
from sween.errors import BadInput

PILOT_TAIL = 0.1
"""Left out at each end of the pilot's interval."""

POINTS = 16
"""Probabilities at which a pilot is weighed."""

SMALLEST = 1000
"""Votes of the smallest size worth drawing."""


def sizes(largest: int, growth: float = 1.15) -> list[int]:
    """Sizes to choose from: whole noise blocks from SMALLEST up to `largest`."""
    grid = [min(SMALLEST, largest)]
    while grid[-1] < largest:
        grown = -(-int(grid[-1] * growth) // STEP) * STEP
        grid.append(min(grown, largest))
    return grid


def _radii(p: Floats, n: Floats, alpha: float) -> Floats:
    """Cohen's radius over sigma where the share of votes is p: (len(p), len(n))."""
    # The bound takes real counts as well as whole ones: these are expectations, not votes.
    missed = (1 - p[:, None]) * n[None, :]
    return radius_of_miss(upper_bound(missed, n, alpha), 1.0)


@lru_cache(maxsize=4096)
def size_for_tolerance(count: int, n0: int, *, tolerance: float, largest: int, alpha: float) -> int:
    """The fewest votes whose expected radius is within `tolerance` of that of `largest` votes.

    It must be within it for every probability of the pilot's 80% interval. Where no probability of
    that interval would be certified even with `largest` votes, the smallest size.

    Valid: a certificate from so many fresh votes holds with probability at least 1 - alpha, since
    the size is a function of the pilot, which they are independent of. That the radius comes
    within the tolerance is expected, not guaranteed.

    Args:
        count: pilot votes for the selected class.
        n0: pilot votes.
        tolerance: in (0, 1).
        largest: the size to compare with.
        alpha: of the certificate.
    """
    low = float(lower_bound(count, n0, PILOT_TAIL))
    high = float(upper_bound(count, n0, PILOT_TAIL))
    p = np.linspace(low, high, POINTS)
    grid = sizes(largest)
    radii = _radii(p, np.asarray(grid, np.float64), alpha)
    enough = np.all(radii >= (1 - tolerance) * radii[:, -1:], axis=0)
    return grid[int(np.argmax(enough))]


def sizes_for_budget(
    counts: Sequence[int], n0: int, *, budget: int, largest: int, alpha: float
) -> list[int]:
    """Sizes, 0 among them, that make the expected average radius large within a budget.

    Each image gets the size that maximises its expected radius under the pilot's posterior (Beta
    with Jeffreys' prior) less a price for each vote, the same for all; the price is the lowest at
    which pilots and votes together stay within the budget.

    Valid: each certificate from so many fresh votes holds with probability at least 1 - alpha,
    since the sizes are functions of all the pilots, which these votes are independent of. That the
    average radius is the best is an expectation.

    Args:
        counts: pilot votes for the selected class, for each image.
        n0: pilot votes of each image.
        budget: noisy images in all, pilots included.
        largest: the most votes of one image.
        alpha: of each certificate.
    """
    left = budget - n0 * len(counts)
    least = min(SMALLEST, largest)
    if left < least:
        raise BadInput(
            "budget",
            expected=f"more than {n0 * len(counts) + least}: {n0} pilot votes for each of "
            f"{len(counts)} images, and some to spend",
            got=budget,
            fix="raise the budget, or lower n0",
        )
    grid = np.asarray([0, *sizes(largest)], np.float64)
    kinds, which = np.unique(np.asarray(counts), return_inverse=True)
    gains = np.stack([_expected_radii(int(kind), n0, grid, alpha) for kind in kinds])[which]
    low, high = 0.0, 1.0  # a radius below sigma * 38 is never worth a whole sigma a vote
    for _ in range(100):
        price = (low + high) / 2
        chosen = _best(gains, grid, price)
        low, high = (price, high) if grid[chosen].sum() > left else (low, price)
    return [int(size) for size in grid[_best(gains, grid, high)]]


def _expected_radii(count: int, n0: int, grid: Floats, alpha: float) -> Floats:
    quantiles = (np.arange(POINTS) + 0.5) / POINTS
    p = special.betaincinv(count + 0.5, n0 - count + 0.5, quantiles)
    return np.concatenate([[0.0], _radii(p, grid[1:], alpha).mean(axis=0)])


def _best(gains: Floats, grid: Floats, price: float) -> npt.NDArray[np.intp]:
    return np.asarray(np.argmax(gains - price * grid, axis=1))
