"""Anytime-valid bounds: conservative, valid at every look, and as efficient as expected."""

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from sween.bounds.anytime import (
    EARLY_SHARE,
    MARGIN,
    STEP,
    anytime_upper_bound_of_miss,
    check_radii_to_decide,
    log_evidence,
    looks,
    margin,
    miss_of_radius,
    sequential_miss,
    settled,
)
from sween.bounds.binomial import upper_bound_of_miss
from sween.bounds.decision import Decision, decide_radii
from sween.bounds.radius import radius_cohen
from sween.errors import BadInput
from sween.seeding import NOISE_BLOCK, numpy_generator
from tests.smoothing.known import most_failures
from tests.smoothing.reference import binomial_lower_tail

RUNS, ALPHA, LARGEST = 20_000, 0.05, 5_000


def exact_log_evidence(k: int, n: int, q: float) -> float:
    """The same through binomial tails, at 50 digits.

    The integral of p^k (1-p)^e over p > m is B(k+1, e+1) P(Binomial(n+1, m) <= k).
    """
    miss = mpmath.mpf(q)
    m, e = 1 - miss, n - k
    if k < (n + 1) * m:
        tail = binomial_lower_tail(k, n + 1, m)
    else:
        tail = 1 - binomial_lower_tail(e, n + 1, miss)
    log_beta = mpmath.loggamma(k + 1) + mpmath.loggamma(e + 1) - mpmath.loggamma(n + 2)
    return float(log_beta + mpmath.log(tail) - (e + 1) * mpmath.log(miss) - k * mpmath.log(m))


@pytest.mark.parametrize(
    ("k", "n", "q"),
    [
        (1, 1, 0.5),
        (100, 100, 0.1),
        (90, 100, 0.3),
        (90, 100, 0.05),
        (0, 50, 0.4),
        (999, 1000, 0.01),
        (5_000, 10_000, 0.52),
        (99_990, 100_000, 0.001),
        (70_000, 100_000, 0.31),
        (100_000, 10**9, 0.99991),
        (999_900_000, 10**9, 1.1e-4),
    ],
)
def test_the_evidence_matches_a_reference_of_fifty_digits(k: int, n: int, q: float) -> None:
    wanted = exact_log_evidence(k, n, q)
    assert float(log_evidence(k, n, q)) == pytest.approx(wanted, abs=float(margin(n)) / 2)


def test_evidence_is_the_documented_likelihood_ratio() -> None:
    """By summing over a fine grid of alternatives: independent of the beta functions."""
    k, n, q = 37, 50, 0.4
    m = 1 - q
    alternatives = m + (np.arange(200_000) + 0.5) / 200_000 * q
    ratio = (alternatives / m) ** k * ((1 - alternatives) / q) ** (n - k)
    assert float(log_evidence(k, n, q)) == pytest.approx(float(np.log(ratio.mean())), abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20_000), st.floats(0, 1), st.floats(1e-6, 0.2))
@example(100, 0.0, 0.01)
def test_the_bound_is_where_the_evidence_reaches_its_threshold(
    n: int, share: float, alpha: float
) -> None:
    k = round(share * n)
    bound = float(anytime_upper_bound_of_miss(k, n, alpha))
    assert (n - k) / n <= bound <= 1
    if bound < 1:
        assert float(log_evidence(k, n, bound)) >= -np.log(alpha)
        below, goal = bound * (1 - 1e-6), -np.log(alpha) + 2 * MARGIN
        assert below <= (n - k) / n or float(log_evidence(k, n, below)) < goal
    # It is valid at all looks, so it is never tighter than the bound for one look.
    assert bound >= float(upper_bound_of_miss(k, n, alpha)) * (1 - 1e-6)
    assert k > 0 or bound == 1


ADVERSARIAL = {
    "one half": 0.5,
    "just below the radius": float(special.ndtr(0.5)),
    "a tie of three": 1 / 3,
    "nearly sure": 0.999,
    "sure but for one in ten thousand": 0.9999,
}


def _paths(p: float, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """(RUNS, looks) successes so far, and the sizes of the looks."""
    sizes = np.asarray(looks(LARGEST))
    steps = np.diff(sizes, prepend=0)
    draws = numpy_generator(0, f"sequence {purpose}").binomial(steps, p, (RUNS, len(steps)))
    return draws.cumsum(axis=1), sizes


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 100_000])
def test_the_evidence_falls_with_the_probability_so_that_the_bound_ends_an_interval(n: int) -> None:
    p = np.linspace(1e-6, 1 - 1e-9, 10_001)
    for misses in {0, 1, n // 10, n // 2, n}:
        evidence = log_evidence(n - misses, n, 1 - p)
        beyond = p > (n - misses) / (n + 1)
        assert np.all(np.diff(evidence[~beyond]) <= 1e-9)
        assert np.all(evidence[beyond] < np.log(2))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_all_looks_together_fail_at_most_alpha_of_the_time(name: str) -> None:
    """For any stopping rule: at no look may the bound be below the truth. Both shares of alpha."""
    p = ADVERSARIAL[name]
    counts, sizes = _paths(p, name)
    early = log_evidence(counts, sizes, 1 - p) >= -np.log(EARLY_SHARE * ALPHA)
    early &= (sizes - counts) / sizes < 1 - p
    last = upper_bound_of_miss(counts[:, -1], LARGEST, (1 - EARLY_SHARE) * ALPHA) < 1 - p
    # `sequential_miss` is that bound: the same runs fail by it, at the same looks.
    failed = [tuple(place) for place in np.argwhere(early)[:20]]
    for run, look in [*failed, (0, 0), (1, 5), (2, len(sizes) - 2)]:
        count, size = int(counts[run, look]), int(sizes[look])
        bound = sequential_miss(count, size, largest=LARGEST, alpha=ALPHA)
        strength = float(log_evidence(count, size, 1 - p)) + np.log(EARLY_SHARE * ALPHA)
        if size < LARGEST and abs(strength) > 1e-4:
            assert (bound < 1 - p) == bool(early[run, look])
    assert int(early.any(axis=1).sum()) <= most_failures(RUNS, EARLY_SHARE * ALPHA)
    assert int((early.any(axis=1) | last).sum()) <= most_failures(RUNS, ALPHA)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_false_decisions_stay_within_alpha(name: str) -> None:
    """The whole procedure, with a radius exactly at the truth: `yes` is then always false."""
    p = ADVERSARIAL[name]
    radius = float(special.ndtri(p)) * (1 + 1e-9) if p > 0.5 else 0.0
    counts, sizes = _paths(p, f"decide {name}")
    active, yes = np.ones(RUNS, dtype=bool), np.zeros(RUNS, dtype=bool)
    needed = float(miss_of_radius(radius, 1.0))
    for look, size in enumerate(sizes):
        stop = settled(counts[:, look], size, [radius], largest=LARGEST, alpha=ALPHA, sigma=1.0)
        now = active & stop
        for count in np.unique(counts[now, look]):
            bound = sequential_miss(int(count), int(size), largest=LARGEST, alpha=ALPHA)
            yes |= now & (counts[:, look] == count) & (bound <= needed) & (bound < 0.5)
        active &= ~stop
    assert not active.any()
    assert int(yes.sum()) <= most_failures(RUNS, ALPHA)


@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize("missed", [0.0, 0.002, 0.1, 0.4])
def test_looks_spend_half_of_alpha_and_the_last_the_other_half(alpha: float, missed: float) -> None:
    """At 50 digits: an early bound needs evidence of 2/alpha, the last one may use the tail too.

    Early looks at all of alpha and a last one at half of it would fail 1.5 alpha of the time.
    """
    for n in looks(20_000)[3::7]:
        count = n - round(missed * n)
        bound = float(sequential_miss(count, n, largest=20_000, alpha=alpha))
        assert bound < 1
        assert exact_log_evidence(count, n, bound) >= -np.log(alpha / 2)
        last = float(sequential_miss(count, n, largest=n, alpha=alpha))
        assert last < bound
        assert binomial_lower_tail(n - count, n, last) <= alpha / 2


def _decide(
    count: int, n: int, *radii: float, largest: int = 10**5, pilot: tuple[int, int] = (9, 1)
) -> tuple[Decision, list[bool]]:
    """At alpha .001 and sigma .5, which of the radii are certified."""
    votes = [count, n - count]
    decision, decisions = decide_radii(pilot, votes, radii, largest=largest, alpha=0.001, sigma=0.5)
    return decision, [decisions[repr(radius)] for radius in radii]


@pytest.mark.parametrize("radius", [0.25, 0.5, 1.0])
def test_a_radius_is_granted_only_where_the_bound_reaches_it(radius: float) -> None:
    """At every look at which sampling stops, and not at a radius a thousandth larger."""
    granted = 0
    needed = float(special.ndtr(-radius / 0.5))
    for n in (200, 1_000, 5_000):
        for count in range(n // 2, n + 1, max(1, n // 200)):
            stops = bool(settled(count, n, [radius], largest=10**5, alpha=0.001, sigma=0.5))
            miss = float(anytime_upper_bound_of_miss(count, n, 0.0005))
            reached = miss < 0.5 and -0.5 * special.ndtri(miss) >= radius * (1 + 1e-11)
            assert _decide(count, n, radius)[1] == [reached]
            if stops and n - count < needed * n:
                assert reached, "stopped as certified, so it must be"
            granted += int(reached)
    assert granted >= 5


@pytest.mark.parametrize("radius", [0.25, 0.5])
def test_the_first_count_that_stops_as_certified_is_certified(radius: float) -> None:
    """Stopping for a radius a thousandth smaller would come a few votes too early."""
    n = 50_000
    needed = float(special.ndtr(-radius / 0.5))
    counts = np.arange(round(n * (1 - needed)) + 1, n)
    stops = settled(counts, n, [radius], largest=10**6, alpha=0.001, sigma=0.5)
    first = int(counts[np.argmax(stops)])
    assert _decide(first, n, radius, largest=10**6)[1] == [True]


def test_a_radius_is_granted_up_to_the_last_bit() -> None:
    radius = _decide(980, 1000, 0.5)[0].radius
    assert _decide(980, 1000, radius, float(np.nextafter(radius, 1)))[1] == [True, False]


def test_decisions_follow_the_radius() -> None:
    decision, granted = _decide(980, 1000, 0.0, 0.5, 3.0)
    assert granted == [True, True, False]
    assert 0.5 < decision.radius < 1.1
    assert decision.radius_cohen == decision.radius
    assert decision.radius_two_class is None
    fixed = float(radius_cohen(980, 1000, alpha=0.001, sigma=0.5))
    at_the_end, _ = _decide(980, 1000, 0.5, largest=1_000)
    assert decision.radius < at_the_end.radius < fixed, "the price of looking at any time"
    nothing, granted = _decide(980, 1000, 0.0, 0.5, largest=1_000, pilot=(3, 97))
    assert (nothing.prediction, nothing.radius) == (-1, 0.0)
    assert granted == [False, False]


@pytest.mark.slow
def test_the_simulation_would_catch_looks_without_a_correction() -> None:
    """The bound for one look, used at all of them."""
    counts, sizes = _paths(0.5, "one half")
    naive = upper_bound_of_miss(counts, sizes, ALPHA) < 0.5
    assert int(naive.any(axis=1).sum()) > 3 * most_failures(RUNS, ALPHA)


def test_the_simulation_would_catch_a_threshold_of_half_the_evidence() -> None:
    """A bug of published code: log(1/(2 alpha)) where log(1/alpha) is needed."""
    evidence = log_evidence(*_paths(0.5, "one half"), 0.5).max(axis=1)
    honest, loose = (int((evidence >= -np.log(level)).sum()) for level in (ALPHA, 2 * ALPHA))
    assert honest <= most_failures(RUNS, ALPHA)
    assert loose > 1.5 * honest


@pytest.mark.parametrize(
    ("radius", "p", "expected"),
    [
        (0.25, 0.55, 224),
        (0.5, 0.90, 660),
        (1.0, 0.99, 1_970),
        (1.0, 0.999, 510),
        (1.5, 0.99, 1_102),
        (1.5, 0.9999, 9_800),
    ],
)
def test_decisions_need_as_few_samples_as_published(radius: float, p: float, expected: int) -> None:
    """Mean samples at sigma .5, alpha .001, against independent simulations of this procedure."""
    generator = numpy_generator(0, f"samples {radius} {p}")
    count, used, before = np.zeros(400, dtype=np.int64), np.zeros(400), 0
    for size in looks(100_000):
        count += generator.binomial(size - before, p, 400)
        stop = settled(count, size, [radius], largest=100_000, alpha=0.001, sigma=0.5)
        used[(used == 0) & stop] = size
        before = size
        if used.all():
            break
    # Looks are at whole noise blocks here, which costs up to half of one.
    assert 0.8 * expected <= used.mean() <= 1.2 * expected + NOISE_BLOCK


@pytest.mark.parametrize("largest", [1, 99, 100, 101, 1_000, 12_345, 100_000])
def test_looks_split_no_noise_block(largest: int) -> None:
    sizes = looks(largest)
    assert STEP == NOISE_BLOCK
    assert sizes[-1] == largest
    assert all(size % NOISE_BLOCK == 0 for size in sizes[:-1])
    steps = np.diff(sizes)
    assert np.all((steps > 0) & (steps <= 0.1 * np.asarray(sizes[:-1]) + NOISE_BLOCK))


@pytest.mark.parametrize("radii", [[], [-0.1], [0.5, float("nan")], [float("inf")]])
def test_radii_that_cannot_be_decided_are_refused(radii: list[float]) -> None:
    with pytest.raises(BadInput, match="radii: expected one or more radii"):
        check_radii_to_decide(radii)
