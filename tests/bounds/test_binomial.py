"""Clopper-Pearson bounds against 50 digits: always conservative, and close to exact."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from sween.bounds.anytime import sequential_miss
from sween.bounds.binomial import (
    FORWARD_ERROR,
    SMALLEST_ALPHA,
    lower_bound,
    upper_bound,
    upper_bound_of_miss,
)
from sween.errors import BadInput
from sween.seeding import numpy_generator
from tests.smoothing.reference import binomial_lower_tail

CLOSE = 3e-8
"""The largest relative distance in q from the exact bound, on the conservative side."""

CASES = [
    (count, n, alpha)
    for n in (1, 2, 9, 10, 11, 100, 1_000, 100_000, 10_000_000)
    for share in (0.0, 1e-6, 1e-3, 0.01, 0.1, 0.35, 0.5, 0.9, 0.99)
    for alpha in (0.05, 0.001, 0.0001, 1e-9)
    if (count := round(share * n)) < n
    # counts that coincide after rounding at a small n are checked once
    if share == 0.0 or count != 0
] + [(count, 10**9, 0.001) for count in (0, 1, 37, 10**3, 10**6, 10**8, 9 * 10**8, 10**9 - 10)]


def assert_tight(count: int, n: int, alpha: float) -> None:
    bound = float(upper_bound(count, n, alpha))
    # At the exact bound the tail equals alpha, and the tail decreases as the bound grows.
    assert binomial_lower_tail(count, n, bound) <= alpha or bound == 1.0
    nearer = bound / (1 + CLOSE)
    # At or below the observed share the tail is about 1/2 or more.
    assert nearer * n <= count or binomial_lower_tail(count, n, nearer) > alpha


@pytest.mark.parametrize(("count", "n", "alpha"), CASES)
def test_bounds_are_conservative_and_tight(count: int, n: int, alpha: float) -> None:
    assert_tight(count, n, alpha)


ALPHAS = (SMALLEST_ALPHA, 1e-20, 1e-4, 9e-4, 1e-3, 0.05, 0.2, 0.5)
LANDMARKS = sorted(
    {
        mark + step
        for mark in (*(10**power for power in range(9)), *(2**power for power in range(4, 30, 3)))
        for step in (-1, 0, 1)
    }
    | {1000 * thousands - 1 for thousands in range(1, 11)}
)
"""Counts at which implementations switch methods: powers, thousands and their neighbours."""


@pytest.mark.parametrize(
    "n",
    [10**5, 5 * 10**5, *(pytest.param(10**n, marks=pytest.mark.slow) for n in (7, 8, 9))],
)
def test_bounds_near_powers_and_thousands_are_conservative_and_tight(n: int) -> None:
    """scipy's inverse is wrong for 999 of very many, by a factor of 7 in the tail at n = 1e9."""
    for position, count in enumerate(LANDMARKS):
        for alpha in ALPHAS[position % 2 :: 2] if count != 999 else ALPHAS:
            if 0 < count < n and float(upper_bound(count, n, alpha)) < 1:
                assert_tight(count, n, alpha)


def _anywhere(seed: int, cases: int) -> list[tuple[int, int, float]]:
    generator, found = numpy_generator(seed, "bounds anywhere"), list[tuple[int, int, float]]()
    while len(found) < cases:
        n = round(10 ** generator.uniform(0.5, 9))
        count = generator.choice([generator.choice(LANDMARKS), generator.integers(n)])
        count = int(generator.choice([count, n - count]))
        if 0 < count < n:
            found.append((count, n, float(10 ** generator.uniform(-100, np.log10(0.5)))))
    return found


@pytest.mark.parametrize(
    ("seed", "cases"),
    [(0, 500), *(pytest.param(seed, 2_000, marks=pytest.mark.slow) for seed in range(1, 11))],
)
def test_bounds_of_random_counts_are_conservative_and_tight(seed: int, cases: int) -> None:
    """Conservative and tight; and the function that checks it is as accurate as assumed."""
    for count, n, alpha in _anywhere(seed, cases):
        bound = float(upper_bound(count, n, alpha))
        if bound < 1:
            assert_tight(count, n, alpha)
            exact = binomial_lower_tail(count, n, bound)
            forward = float(special.betaincc(count + 1, n - count, bound))
            assert abs(forward / exact - 1) < FORWARD_ERROR / 2, (count, n, alpha)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2**20, 10**7, 10**7 + 1, 2**27, 10**9])
def test_bounds_of_small_counts_and_thousands_are_conservative_and_tight(n: int) -> None:
    for count in (*range(1, 60), *range(990, 1010), *range(999, 20_000, 1_000)):
        for alpha in ALPHAS:
            assert_tight(count, n, alpha)


@pytest.mark.parametrize("n", [10**4, 5 * 10**5, 10**7, 10**7 + 1, 10**9])
def test_bounds_grow_with_the_count_everywhere(n: int) -> None:
    """Every count of long ranges, including those where scipy's inverse jumps."""
    for alpha in (1e-20, 1e-3, 0.2):
        for first in (0, n // 10, n // 2, n - 3_000):
            counts = np.arange(first, min(first + 3_000, n) + 1)
            assert np.all(np.diff(upper_bound(counts, n, alpha)) >= 0)


@pytest.mark.parametrize("count", [0, 1, 5, 999, 1_000, 9_999])
def test_bounds_fall_with_the_trials(count: int) -> None:
    """Up to 1e8; beyond, one trial more changes a bound by less than it is widened."""
    for first in (count + 1, 10**5, 5 * 10**5, 10**7 - 500, 10**8):
        trials = np.arange(first, first + 1_000)
        assert np.all(np.diff(upper_bound(count, trials, 1e-3)) <= 0)


@pytest.mark.parametrize("n", [10**8, 10**9])
def test_the_last_look_of_a_sequence_is_safe_too(n: int) -> None:
    miss = float(sequential_miss(n - 999, n, largest=n, alpha=0.001))
    assert binomial_lower_tail(999, n, miss) <= 0.0005


@pytest.mark.parametrize(("count", "n", "p"), [(0, 3, 0.4), (7, 40, 0.3), (90, 100, 0.95)])
def test_the_reference_agrees_with_a_plain_sum(count: int, n: int, p: float) -> None:
    plain = sum(
        mpmath.binomial(n, k) * mpmath.mpf(p) ** k * (1 - mpmath.mpf(p)) ** (n - k)
        for k in range(count + 1)
    )
    assert abs(binomial_lower_tail(count, n, p) / plain - 1) < 1e-40


def test_bounds_at_no_and_at_all_successes() -> None:
    assert float(upper_bound(5, 5, 0.001)) == 1.0
    assert float(upper_bound_of_miss(0, 7, 0.001)) == 1.0
    assert float(lower_bound(0, 7, 0.001)) == 0.0
    assert float(lower_bound(1, 1, 0.05)) == pytest.approx(0.05, rel=3e-8)
    assert float(upper_bound(0, 100, 0.05)) == pytest.approx(1 - 0.05 ** (1 / 100), rel=1e-8)


def test_the_bound_is_one_sided() -> None:
    """A two-sided interval at alpha would spend alpha / 2 on this side."""
    ours = float(upper_bound(30, 100, 0.05))
    one_sided = stats.binomtest(30, 100).proportion_ci(confidence_level=0.90).high
    two_sided = stats.binomtest(30, 100).proportion_ci(confidence_level=0.95).high
    assert ours == pytest.approx(one_sided, rel=1e-6)
    assert ours < two_sided


def test_bounds_broadcast_over_arrays() -> None:
    bounds = upper_bound(np.array([0, 3, 10]), 10, 0.01)
    assert bounds.shape == (3,)
    assert [float(upper_bound(k, 10, 0.01)) for k in (0, 3, 10)] == bounds.tolist()


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(1e-6, 0.4), st.floats(1.01, 2))
def test_bounds_are_monotone_in_the_count_and_nested_in_alpha(
    n: int, share: float, alpha: float, factor: float
) -> None:
    count = min(int(share * n), n - 1)
    assert upper_bound(count, n, alpha) <= upper_bound(count + 1, n, alpha)
    assert upper_bound(count, n, alpha) >= upper_bound(count, n, alpha * factor)


def test_the_lower_bound_never_rounds_up() -> None:
    counts = np.arange(0, 1001)
    assert np.all(lower_bound(counts, 1000, 0.001) + upper_bound_of_miss(counts, 1000, 0.001) <= 1)


@pytest.mark.parametrize(("count", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(count: int, n: int) -> None:
    with pytest.raises(BadInput):
        upper_bound(count, n, 0.1)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, float("nan")])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(BadInput, match="alpha"):
        upper_bound(1, 5, alpha)
