"""The expected radius against the full sum, simulation, known values, and its own limits."""

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sween.bounds.radius import radius_cohen, radius_two_class
from sween.errors import BadInput
from sween.seeding import numpy_generator
from sween.theory import expected_radius
from sween.theory.expected_radius import MOST_CELLS, Outlook, cells

ALPHA = 0.001


def cohen(p: float, n: int) -> Outlook:
    return expected_radius(p, n, alpha=ALPHA, sigma=1.0).cohen


def two_class(p: float, n: int, runner_up: float, *, sigma: float = 1.0, seed: int = 0) -> Outlook:
    result = expected_radius(p, n, alpha=ALPHA, sigma=sigma, runner_up=runner_up, seed=seed)
    assert result.two_class is not None
    return result.two_class


def full_sum(p: float, n: int) -> tuple[float, float]:
    """Mean radius and probability of abstaining, over every count from 0 to n."""
    counts = np.arange(n + 1)
    radii = radius_cohen(counts, n, alpha=ALPHA, sigma=1.0)
    mass = stats.binom.pmf(counts, n, p)
    return float(radii @ mass), float(mass[radii == 0].sum())


@pytest.mark.parametrize("n", [5, 60, 1000, 100_000])
@pytest.mark.parametrize("p", [0.3, 0.503, 0.6, 0.9, 0.9995, 1.0])
def test_equals_the_full_sum(p: float, n: int) -> None:
    expected, abstain = full_sum(p, n)
    outlook = cohen(p, n)
    assert math.isclose(outlook.expected, expected, rel_tol=1e-9, abs_tol=1e-12)
    assert math.isclose(outlook.abstain_probability, abstain, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("p", [0.5004, 0.7, 0.97])
def test_cells_agree_with_single_counts(p: float) -> None:
    """Beyond MOST_CELLS counts in reach the sum is over cells; here it is over every count."""
    n = 4_000_000
    deviation = math.sqrt(n * p * (1 - p))
    counts = np.arange(int(n * p - 9 * deviation), min(n, int(n * p + 9 * deviation)) + 1)
    assert counts.size > MOST_CELLS
    exact = radius_cohen(counts, n, alpha=ALPHA, sigma=1.0) @ stats.binom.pmf(counts, n, p)
    outlook = cohen(p, n)
    assert math.isclose(outlook.expected, float(exact), rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(("p", "n"), [(0.52, 2000), (0.8, 10**6), (0.999, 10**9)])
def test_agrees_with_simulation(p: float, n: int) -> None:
    draws = numpy_generator(1, "expected-radius-test").binomial(n, p, size=5_000)
    radii = radius_cohen(draws, n, alpha=ALPHA, sigma=1.0)
    outlook, share = cohen(p, n), cohen(p, n).abstain_probability
    assert abs(outlook.expected - radii.mean()) < 4.5 * radii.std() / math.sqrt(radii.size)
    spread = math.sqrt(share * (1 - share) / radii.size)
    assert abs(share - (radii == 0).mean()) <= 4.5 * spread + 1e-9


@pytest.mark.parametrize(
    ("p", "runner_up"), [(0.35, 0.10), (0.55, 0.30), (0.90, 0.05), (0.99, 0.002), (1.0, 0.0)]
)
def test_close_to_the_radius_of_the_expected_votes(p: float, runner_up: float) -> None:
    n = 100_000
    votes, rivals = round(p * n), round(runner_up * n)
    by_cohen = radius_cohen(votes, n, alpha=ALPHA, sigma=1.0)
    by_two_class = radius_two_class(votes, rivals, n, alpha=ALPHA, sigma=1.0)
    one, two = cohen(p, n), two_class(p, n, runner_up)
    assert (one.expected, two.expected) == pytest.approx((by_cohen, by_two_class), abs=0.003)
    assert two.abstain_probability == 0
    assert math.isclose(one.abstain_probability, float(by_cohen == 0), abs_tol=1e-12)


def test_two_class_matches_multinomial_votes_of_many_small_classes() -> None:
    """The assumption about the rest, played out: eleven classes of .05 next to .35 and .10."""
    votes = numpy_generator(2, "expected-radius-test").multinomial(
        10_000, [0.35, 0.10, *[0.05] * 11], size=4_000
    )
    radii = radius_two_class(votes[:, 0], votes[:, 1:].max(axis=1), 10_000, alpha=ALPHA, sigma=1.0)
    outlook = two_class(0.35, 10_000, 0.10)
    assert outlook.standard_error is not None
    error = math.hypot(outlook.standard_error, radii.std() / math.sqrt(radii.size))
    assert abs(outlook.expected - radii.mean()) < 4.5 * error


def test_the_simulation_is_seeded() -> None:
    means = [two_class(0.8, 1000, 0.1, seed=seed).expected for seed in (3, 3, 4)]
    assert means[0] == means[1] != means[2]


def test_limits() -> None:
    half = expected_radius(0.9, 1000, alpha=ALPHA, sigma=0.5).cohen
    assert math.isclose(half.asymptotic, 0.5 * 1.2815515655446004)
    # With p + runner_up = 1 both bounds aim at the same radius.
    assert math.isclose(two_class(0.9, 1000, 0.1, sigma=0.5).asymptotic, half.asymptotic)
    assert half.largest == radius_cohen(1000, 1000, alpha=ALPHA, sigma=0.5)
    assert (cohen(1.0, 10).asymptotic, cohen(0.5, 10).asymptotic) == (math.inf, 0)
    assert two_class(0.3, 10, 0.3).asymptotic == 0
    few = cohen(1.0, 9)
    assert (few.expected, few.abstain_probability, few.largest) == (0, 1, 0)


def test_a_billion_votes_take_less_than_a_second() -> None:
    for p in (0.6, 0.9, 0.999999):
        start = time.process_time()
        outlook = cohen(p, 10**9)
        assert time.process_time() - start < 1
        # At p = .999999 only a thousand votes miss, and the bound stays further away.
        assert 0 < outlook.asymptotic - outlook.expected < 0.03


def test_the_text_rounds_radii_down_and_names_the_assumption() -> None:
    text = str(expected_radius(1.0, 100_000, alpha=ALPHA, sigma=1.0, runner_up=0.0))
    assert all(part in text for part in ("unlimited", "3.8114", "3.8077"))  # 3.81148.., 3.80777..
    text = str(expected_radius(0.35, 100_000, alpha=ALPHA, sigma=1.0, runner_up=0.1))
    for part in ("abstaining 1\n", "0 of 20,000 draws", "too small to overtake", "two-class"):
        assert part in text
    assert "two-class" not in str(expected_radius(0.35, 100_000, alpha=ALPHA, sigma=1.0))


@settings(max_examples=30, deadline=None)
@given(p=st.floats(0.5, 0.99), n=st.integers(10, 5000), gain=st.floats(0.001, 0.01))
def test_grows_with_p_and_stays_below_its_limits(p: float, n: int, gain: float) -> None:
    lower, higher = cohen(p, n), cohen(p + gain, n)
    assert lower.expected <= higher.expected + 1e-12
    assert lower.abstain_probability >= higher.abstain_probability - 1e-12
    assert higher.expected <= higher.largest * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 10**9), q=st.floats(0, 1), most=st.integers(1, 9000))
def test_cells_tile_a_range_of_counts(n: int, q: float, most: int) -> None:
    first, last = cells(n, q, most)
    assert first.size <= most
    assert first[0] >= 0
    assert last[-1] <= n
    assert np.all(first <= last)
    assert np.array_equal(first[1:], last[:-1] + 1)
    left_out = stats.binom.cdf(first[0] - 1, n, q) + stats.binom.sf(last[-1], n, q)
    assert left_out < 1e-20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("p", value) for value in (0.0, 1.1, math.nan)],
        *[("n", value) for value in (0, 10**9 + 1, 100.0)],
        *[("alpha", 0.0), ("sigma", -1.0), ("runner_up", -0.1)],
        ("runner_up", 0.2),  # the sum is above 1
    ],
)
def test_refuses_impossible_arguments(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"p": 0.9, "n": 100, "alpha": ALPHA, "sigma": 1.0, name: value}
    with pytest.raises(BadInput, match=f"^{name}: expected"):
        expected_radius(**arguments)
