"""Sizes chosen from pilot votes: sound with fresh votes, near the tolerance, within budget."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import special

from sween.bounds.binomial import upper_bound_of_miss
from sween.bounds.radius import radius_cohen
from sween.bounds.sample_size import SMALLEST, size_for_tolerance, sizes, sizes_for_budget
from sween.errors import BadInput
from sween.seeding import numpy_generator
from tests.smoothing.known import most_failures

RUNS, ALPHA, N0, LARGEST = 20_000, 0.05, 1_000, 20_000
ADVERSARIAL = (0.5, 0.501, 0.55, 0.9, 0.999)


def test_sizes_grow_to_the_largest() -> None:
    grid = sizes(100_000)
    assert (grid[0], grid[-1]) == (SMALLEST, 100_000)
    assert grid == sorted(set(grid))
    assert all(size % 100 == 0 for size in grid)
    assert sizes(300) == [300]


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.70, 15_000), (0.90, 5_800), (0.99, 8_200), (0.999, 33_000), (1.0, 51_000)],
)
def test_tolerance_needs_about_the_published_samples(p: float, expected: int) -> None:
    size = size_for_tolerance(round(p * N0), N0, tolerance=0.05, largest=100_000, alpha=0.001)
    assert 0.7 * expected <= size <= 1.3 * expected


def _tolerance_sizes(pilots: np.ndarray) -> np.ndarray:
    values, where = np.unique(pilots, return_inverse=True)
    chosen = [
        size_for_tolerance(int(value), N0, tolerance=0.05, largest=LARGEST, alpha=ALPHA)
        for value in values
    ]
    return np.asarray(chosen)[where]


def _budget_sizes(pilots: np.ndarray) -> np.ndarray:
    budget = RUNS * 4_000
    return np.asarray(
        sizes_for_budget(pilots.tolist(), N0, budget=budget, largest=LARGEST, alpha=ALPHA)
    )


@pytest.mark.parametrize("p", ADVERSARIAL)
@pytest.mark.parametrize("sizes_of", [_tolerance_sizes, _budget_sizes])
def test_sizes_that_depend_on_the_pilots_are_sound(
    sizes_of: Callable[[np.ndarray], np.ndarray], p: float
) -> None:
    """Also those that depend on the pilots of all images: the votes behind the bounds do not."""
    generator = numpy_generator(0, f"{sizes_of.__name__} {p}")
    chosen = sizes_of(generator.binomial(N0, p, RUNS))
    drawn = chosen[chosen > 0]
    false = upper_bound_of_miss(generator.binomial(drawn, p), drawn, ALPHA) < 1 - p
    assert int(false.sum()) <= most_failures(RUNS, ALPHA)


def test_the_simulation_would_catch_pilot_votes_in_the_bound() -> None:
    """The pilot selects one of two equally likely classes, and is then reused for its bound."""
    generator = numpy_generator(0, "reused pilot")
    votes = generator.binomial(N0, 0.5, RUNS)
    pilots = np.maximum(votes, N0 - votes)
    chosen = _tolerance_sizes(pilots)
    fresh = generator.binomial(chosen, 0.5)
    honest = upper_bound_of_miss(fresh, chosen, ALPHA) < 0.5
    reused = upper_bound_of_miss(pilots + fresh, N0 + chosen, ALPHA) < 0.5
    assert int(honest.sum()) <= most_failures(RUNS, ALPHA)
    assert int(reused.sum()) > most_failures(RUNS, ALPHA)


P = special.ndtr(np.abs(numpy_generator(0, "population").normal(1.0, 1.4, 2_000)))
"""Probabilities of the selected class like those of a trained network: many near 1."""
PILOTS = [int(count) for count in numpy_generator(0, "pilots").binomial(N0, P)]


def _average_radius(sizes_: np.ndarray | int, purpose: str) -> float:
    sizes_ = np.broadcast_to(sizes_, P.shape)
    counts = numpy_generator(0, purpose).binomial(sizes_, P)
    radii = radius_cohen(counts, np.maximum(sizes_, 1), alpha=0.001, sigma=1.0)
    return float(np.where(sizes_ > 0, radii, 0.0).mean())


def test_tolerance_keeps_the_average_radius() -> None:
    chosen = np.asarray(
        [
            size_for_tolerance(count, N0, tolerance=0.05, largest=100_000, alpha=0.001)
            for count in PILOTS
        ]
    )
    assert _average_radius(chosen, "tolerance") >= 0.95 * _average_radius(100_000, "fixed")
    assert chosen.mean() < 40_000


def test_budget_is_kept_and_well_spent() -> None:
    budget = 25_000 * len(P)
    chosen = np.asarray(sizes_for_budget(PILOTS, N0, budget=budget, largest=100_000, alpha=0.001))
    assert 0.95 * budget <= chosen.sum() + N0 * len(P) <= budget
    spent = _average_radius(chosen, "spent")
    assert spent >= 0.97 * _average_radius(100_000, "fixed")
    assert spent > _average_radius(25_000, "evenly")


def test_a_larger_budget_never_buys_less() -> None:
    totals = [
        sum(sizes_for_budget(PILOTS[:300], N0, budget=budget, largest=100_000, alpha=0.001))
        for budget in (400_000, 1_000_000, 5_000_000, 50_000_000)
    ]
    assert totals == sorted(totals)
    assert totals[-1] <= 300 * 100_000


def test_hopeless_images_get_no_votes() -> None:
    chosen = sizes_for_budget([300, 950], N0, budget=20_000, largest=100_000, alpha=0.001)
    assert chosen[0] == 0
    assert chosen[1] > 10_000


def test_a_budget_below_the_pilots_is_refused() -> None:
    with pytest.raises(BadInput, match=r"budget: expected more than 3000: 1000 pilot votes.*$"):
        sizes_for_budget([900, 900], N0, budget=2_500, largest=100_000, alpha=0.001)
