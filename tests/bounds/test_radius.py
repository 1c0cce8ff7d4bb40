"""Radii from counts: published numbers, abstention, monotonicity."""

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from sween.bounds.anytime import miss_of_radius
from sween.bounds.binomial import upper_bound
from sween.bounds.decision import decide, decide_radii
from sween.bounds.radius import (
    fewest_certified_votes,
    level_of_class,
    noise_level,
    radius_cohen,
    radius_two_class,
    smallest_certifiable_n,
)
from sween.engine.exact_noise import ExactNoise, noise_table
from sween.engine.noise import GaussianNoise
from sween.errors import BadInput, UnknownName
from sween.records import ABSTAIN
from sween.seeding import NOISE_BLOCK, derive_key, normals_of
from tests.smoothing.reference import exact_upper_bound

N = 100_000


@pytest.mark.parametrize(
    ("p_class", "p_rival", "cohen", "two_class"),
    [
        (0.35, 0.10, 0.0, 0.432),
        (0.55, 0.30, 0.113, 0.311),
        (0.70, 0.15, 0.512, 0.765),
        (0.90, 0.05, 1.265, 1.442),
        (0.99, 0.002, 2.290, 2.543),
        (1.0, 0.0, 3.811, 3.808),
    ],
)
def test_radii_match_published_numbers(
    p_class: float, p_rival: float, cohen: float, two_class: float
) -> None:
    count, rival = round(p_class * N), round(p_rival * N)
    assert float(radius_cohen(count, N, alpha=0.001, sigma=1)) == pytest.approx(cohen, abs=6e-4)
    radius = radius_two_class(count, rival, N, alpha=0.001, sigma=1)
    assert float(radius) == pytest.approx(two_class, abs=6e-4)


def test_half_of_the_votes_certify_nothing() -> None:
    """At a lower bound of 1/2 or below there is nothing to certify."""
    counts = np.arange(0, 1001)
    radii = radius_cohen(counts, 1000, alpha=0.001, sigma=1.0)
    misses = upper_bound(1000 - counts, 1000, 0.001)
    assert np.all((radii > 0) == (misses < 0.5))
    assert float(radius_cohen(500, 1000, alpha=0.001, sigma=1.0)) == 0.0
    assert float(radius_two_class(500, 500, 1000, alpha=0.001, sigma=1.0)) == 0.0


@pytest.mark.parametrize("bound", ["cohen", "two-class"])
def test_abstention_is_decided_after_rounding(bound: str) -> None:
    """A bound just below 1/2 that conservative rounding lifts above it certifies nothing."""
    n, level = 10**9, level_of_class(0.001, bound)
    misses = n // 2 - np.arange(40_000, 60_000)
    inverse = special.betainccinv(misses + 1, n - misses, level)
    between = (inverse < 0.5) & (upper_bound(misses, n, level) >= 0.5)
    assert np.any(between), "of a billion votes some bound lies there"
    for miss in misses[between].tolist():
        decision = decide([90, 10], [n - miss, miss], alpha=0.001, sigma=1.0, bound=bound)
        assert (decision.prediction, decision.radius) == (ABSTAIN, 0.0)
    certified = int(misses[inverse < 0.5 * (1 - 3e-8)].max())
    votes = [n - certified, certified]
    assert decide([90, 10], votes, alpha=0.001, sigma=1.0, bound=bound).prediction == 0


@pytest.mark.parametrize("n", [5 * 10**5, 10**7, 10**9])
@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 0.2])
def test_radii_grow_with_the_votes_around_a_thousand_misses(n: int, alpha: float) -> None:
    misses = np.arange(1_100)[::-1]
    assert np.all(np.diff(radius_cohen(n - misses, n, alpha=alpha, sigma=0.5)) > 0)
    two_class = radius_two_class(n - misses, misses, n, alpha=alpha, sigma=0.5)
    assert np.all(np.diff(two_class) > 0)


@given(n=st.integers(1, 10**6), share=st.floats(0, 1), sigma=st.floats(0.01, 10))
def test_more_votes_never_shrink_a_radius(n: int, share: float, sigma: float) -> None:
    count = min(int(share * n), n - 1)
    fewer, more = radius_cohen(np.array([count, count + 1]), n, alpha=0.001, sigma=sigma)
    assert 0 <= fewer <= more


@given(n=st.integers(2, 10**5), data=st.data())
def test_two_class_falls_with_the_runner_up(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, n - 1))
    rival = data.draw(st.integers(1, n - count))
    radius, other = radius_two_class(count, np.array([rival, rival - 1]), n, alpha=0.001, sigma=1.0)
    assert 0 <= radius <= other


@given(n=st.integers(11, 10**5), data=st.data())
def test_two_class_is_at_least_cohen_at_its_own_level(n: int, data: st.DataObject) -> None:
    """pB is also capped by 1 - pA, so only the smaller alpha for the class can cost."""
    count = data.draw(st.integers(n // 2, n))
    cohen = float(radius_cohen(count, n, alpha=0.0009, sigma=1.0))
    two_class = float(radius_two_class(count, n - count, n, alpha=0.001, sigma=1.0))
    assert two_class >= cohen * (1 - 1e-9)


def test_radius_keeps_its_digits_near_certainty() -> None:
    """Thanks to q = 1 - p: ndtri(1 - q) would lose digits at n = 1e9."""
    n = 10**9
    exact = -special.ndtri(-np.expm1(np.log(0.001) / n))
    assert float(radius_cohen(n, n, alpha=0.001, sigma=1.0)) == pytest.approx(exact, rel=1e-8)
    assert float(radius_cohen(n, n, alpha=0.001, sigma=1.0)) < exact


def test_the_fewest_votes_that_certify() -> None:
    assert smallest_certifiable_n(0.001) == fewest_certified_votes(9, 0.001) == 10
    assert smallest_certifiable_n(0.001, "two-class") == 11
    assert smallest_certifiable_n(0.05) == 5
    for n in (10, 57, 100, 1000):
        fewest = fewest_certified_votes(n, 0.001)
        below, enough = radius_cohen(np.array([fewest - 1, fewest]), n, alpha=0.001, sigma=1)
        assert below == 0 < enough


@pytest.mark.parametrize("sigma", [0.12, 0.1, 0.3, 1 / 3])
def test_noise_and_radius_share_one_level(sigma: float) -> None:
    """float32 noise has a float32 level, 2.2e-8 below .12, and no radius may use a larger one."""
    level = noise_level(sigma)
    assert level != sigma
    keys, images = [derive_key(0, "level")], torch.zeros(1, 1, 4, 4)
    drawn, _ = GaussianNoise(sigma=sigma).copies(images, keys)
    normals = normals_of(keys, (NOISE_BLOCK, 1, 4, 4), images.device)[0]
    assert torch.equal(drawn, torch.tensor(level, dtype=torch.float32) * normals)
    exact = ExactNoise(sigma=sigma, levels=16)
    assert torch.equal(exact.table.cumulative, noise_table(level, 16).cumulative)
    for radius in (
        lambda s: radius_cohen(900, 1000, alpha=0.001, sigma=s),
        lambda s: radius_two_class(900, 60, 1000, alpha=0.001, sigma=s),
        lambda s: (
            decide_radii([9, 1], [900, 100], [0.1], largest=10**4, alpha=0.001, sigma=s)[0].radius
        ),
    ):
        assert float(radius(sigma)) == float(radius(level))
    miss = float(upper_bound(100, 1000, 0.001))
    assert float(radius_cohen(900, 1000, alpha=0.001, sigma=sigma)) <= -level * special.ndtri(miss)
    assert float(miss_of_radius(0.1, sigma)) == float(miss_of_radius(0.1, level))


@pytest.mark.parametrize("sigma", [0.0625, 0.25, 0.5, 1.0, 2])
def test_float32_noise_levels_are_unchanged(sigma: float) -> None:
    assert noise_level(sigma) == sigma
    miss = float(upper_bound(100, 1000, 0.001))
    wanted = -sigma * special.ndtri(miss) * (1 - 1e-12)
    assert float(radius_cohen(900, 1000, alpha=0.001, sigma=sigma)) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"sigma": s}, "sigma") for s in (0.0, -0.5, float("nan"), float("inf"), 1e-39, 1e39)),
        # Beyond the accuracy of the inverse:
        *(({"alpha": alpha}, "at least 1e-100") for alpha in (1e-101, 1e-250)),
    ],
)
def test_an_impossible_sigma_or_alpha_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        radius_cohen(50, 50, **{"alpha": 0.001, "sigma": 1.0} | options)


def test_classes_with_more_votes_than_were_drawn_are_refused() -> None:
    with pytest.raises(BadInput, match="runner_up_count"):
        radius_two_class(7, 6, 10, alpha=0.001, sigma=1.0)


def test_an_unknown_bound_is_refused() -> None:
    with pytest.raises(UnknownName, match="bound 'best'"):
        decide([90, 10], [600, 400], alpha=0.001, sigma=1.0, bound="best")


@pytest.mark.parametrize(
    ("count", "rival", "n"),
    [(550, 300, 1000), (35, 10, 100), (7000, 1500, 10_000), (400, 350, 750)],
)
def test_two_class_radius_is_below_fifty_digits(count: int, rival: int, n: int) -> None:
    """The exact radius from exactly solved bounds is never exceeded."""
    own = 1 - exact_upper_bound(n - count, n, mpmath.mpf(9) / 10 / 1000)
    other = min(exact_upper_bound(rival, n, mpmath.mpf(1) / 10 / 1000), 1 - own)
    exact = (_quantile(own) - _quantile(other)) / 2
    ours = float(radius_two_class(count, rival, n, alpha=0.001, sigma=1.0))
    if exact <= 0:
        assert ours == 0
    else:
        assert 0 <= (exact - ours) / exact < 1e-6


def _quantile(p: Any) -> Any:
    return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)
