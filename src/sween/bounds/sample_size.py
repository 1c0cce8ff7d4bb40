"""Chooses the number of votes for each image from its pilot votes. No torch here.

The sizes are functions of the pilot (selection) votes alone. The votes used for the bound are fresh
and independent of them, so given the size each bound holds as for a size fixed in advance: the full
alpha is spent on it, whatever the rule for choosing sizes.
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
"""Probability left out at each end of the pilot's confidence interval."""

POINTS = 16
"""Probabilities at which the expected radius is evaluated."""

SMALLEST = 1000
"""The smallest number of votes worth drawing."""


def sizes(largest: int, growth: float = 1.15) -> list[int]:
    """Sizes to choose from: whole noise blocks, from SMALLEST up to `largest`."""
    grid = [min(SMALLEST, largest)]
    while grid[-1] < largest:
        grown = -(-int(grid[-1] * growth) // STEP) * STEP
        grid.append(min(grown, largest))
    return grid


def _radii(p: Floats, n: Floats, alpha: float) -> Floats:
    """Cohen's radius over sigma if a share p of n votes is for the class: (len(p), len(n))."""
    # The bound accepts fractional counts: these are expectations, not votes.
    missed = (1 - p[:, None]) * n[None, :]
    return radius_of_miss(upper_bound(missed, n, alpha), 1.0)


@lru_cache(maxsize=4096)
def size_for_tolerance(count: int, n0: int, *, tolerance: float, largest: int, alpha: float) -> int:
    """The fewest votes whose expected radius is within `tolerance` of that of `largest` votes.

    This must hold for every probability in the pilot's 80% confidence interval. If no probability
    in that interval would be certified even with `largest` votes, the smallest size is returned.

    Validity: a certificate from this many fresh votes holds with probability at least 1 - alpha,
    since the size depends on the pilot alone, of which they are independent. The tolerance itself
    is met in expectation, not guaranteed.

    Args:
        count: pilot votes for the selected class.
        n0: pilot votes.
        tolerance: in (0, 1).
        largest: the size to compare with.
        alpha: of the certificate.

    Example:
        >>> from sween.bounds import size_for_tolerance
        >>> def size(count):
        ...     return size_for_tolerance(count, 1000, tolerance=0.05, largest=100_000, alpha=0.001)
        >>> size(700), size(990), size(1000)
        (13800, 6700, 49200)
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
    """Sizes, possibly 0, that maximise the expected average certified radius within a budget.

    Each image gets the size that maximises its expected radius under the pilot's posterior (Beta
    with Jeffreys' prior) minus a price per vote, which is the same for all images; the price is the
    lowest at which pilots and votes together stay within the budget.

    Validity: each certificate from this many fresh votes holds with probability at least 1 - alpha,
    since the sizes depend on the pilots alone, of which these votes are independent. The average
    certified radius is maximised in expectation only.

    Args:
        counts: pilot votes for the selected class, per image.
        n0: pilot votes per image.
        budget: total number of noisy images, pilots included.
        largest: the most votes for one image.
        alpha: of each certificate.

    Example:
        >>> from sween.bounds import sizes_for_budget
        >>> pilots = [300, 700, 1000]  # votes for the class, of 1,000 each
        >>> sizes = sizes_for_budget(pilots, 1000, budget=50_000, largest=100_000, alpha=0.001)
        >>> sizes, 3 * 1000 + sum(sizes) <= 50_000
        ([0, 7800, 37100], True)
    """
    least_budget(n0, len(counts), largest=largest, budget=budget)
    left = budget - n0 * len(counts)
    grid = np.asarray([0, *sizes(largest)], np.float64)
    kinds, which, images = np.unique(counts, return_inverse=True, return_counts=True)
    gains = np.stack([_expected_radii(int(kind), n0, grid, alpha) for kind in kinds])
    low, high = 0.0, 1.0  # radii stay below 38 sigma: no vote is ever worth a whole sigma
    for _ in range(100):
        price = (low + high) / 2
        chosen = _best(gains, grid, price)
        low, high = (price, high) if grid[chosen] @ images > left else (low, price)
    return [int(size) for size in grid[_best(gains, grid, high)][which]]


def least_budget(n0: int, images: int, *, largest: int, budget: int | None = None) -> int:
    """The smallest budget for so many images; a given one is refused if it is smaller.

    Args:
        n0: pilot votes per image.
        images: that share the budget.
        largest: the most votes for one image.
        budget: total number of noisy images, pilots included.
    """
    least = n0 * images + min(SMALLEST, largest)
    if budget is not None and budget < least:
        raise BadInput(
            "budget",
            expected=f"more than {least}: {n0} pilot votes for each of {images} images, plus "
            "votes to allocate",
            got=budget,
            fix="raise the budget, or lower n0",
        )
    return least


def _expected_radii(count: int, n0: int, grid: Floats, alpha: float) -> Floats:
    quantiles = (np.arange(POINTS) + 0.5) / POINTS
    p = special.betaincinv(count + 0.5, n0 - count + 0.5, quantiles)
    return np.concatenate([[0.0], _radii(p, grid[1:], alpha).mean(axis=0)])


def _best(gains: Floats, grid: Floats, price: float) -> npt.NDArray[np.intp]:
    return np.asarray(np.argmax(gains - price * grid, axis=1))
