"""Soft votes: a sound bound on a mean, scores rounded down, rows that can be re-derived."""

import json
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sween.bounds.binomial import upper_bound_of_miss
from sween.bounds.scores import LARGEST_BET, MARGIN, SCORE_STEPS, pairs_of, soft_miss
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput
from sween.records import Certificate, from_row, row_checksum, to_line, to_row
from sween.sampling import CertifySettings
from sween.seeding import numpy_generator
from tests.cli.command import run_line, succeed
from tests.smoothing import small
from tests.smoothing.known import most_failures
from tests.smoothing.small import ZOO, constant, images, smoothed

RUNS, ALPHA, N0, N = 20_000, 0.05, 100, 400


def histogram(scores: np.ndarray) -> tuple[int, ...]:
    bins = np.floor(scores * SCORE_STEPS).astype(int)
    return pairs_of(np.bincount(bins, minlength=SCORE_STEPS + 1).tolist())


LAWS: dict[str, tuple[float, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]]] = {
    "low confidence": (0.6, lambda generator, size: generator.beta(6, 4, size)),
    "spread out": (0.5, lambda generator, size: generator.beta(0.5, 0.5, size)),
    "hard votes": (0.5, lambda generator, size: (generator.random(size) < 0.5).astype(float)),
    "nearly sure": (1 - 0.05 / 5.05, lambda generator, size: 1 - generator.beta(0.05, 5, size)),
    "rare failures": (0.99, lambda generator, size: (generator.random(size) < 0.99).astype(float)),
}
"""Distributions of scores, with their means."""


def rounded_down(scores: np.ndarray) -> np.ndarray:
    return np.asarray(np.floor(scores * SCORE_STEPS) / SCORE_STEPS)


@pytest.mark.parametrize("name", LAWS)
def test_false_bounds_stay_within_alpha(name: str) -> None:
    """Vectorised: the mean is rejected if the wealth of a bet against it reaches 1/alpha."""
    generator = numpy_generator(0, f"soft {name}")
    mean, draw = LAWS[name]
    pilots, scores = draw(generator, (RUNS, N0)), draw(generator, (RUNS, N))
    goal = -np.log(ALPHA)
    with np.errstate(divide="ignore"):
        rates = np.sqrt(2 * goal / (N * rounded_down(pilots).var(axis=1)))
    rates = np.minimum(rates, 0.999 / mean)
    wealth = np.log1p(rates[:, None] * (rounded_down(scores) - mean)).sum(axis=1)
    assert int((wealth >= goal).sum()) <= most_failures(RUNS, ALPHA)
    # And `soft_miss` is that bound: it rejects the mean in the same runs.
    refuted = np.flatnonzero(wealth >= goal)[:60]
    for run in {*refuted.tolist(), *range(40)}:
        bound = soft_miss(histogram(pilots[run]), histogram(scores[run]), n=N, alpha=ALPHA)
        if abs(wealth[run] - goal) > 1e-3:
            assert (bound < 1 - mean) == (wealth[run] >= goal)


def test_the_simulation_would_catch_a_class_chosen_by_its_own_scores() -> None:
    """The luckiest of fifty equal classes, bounded by the very scores that selected it."""
    generator = numpy_generator(0, "luckiest")
    hits = generator.binomial(N, 0.5, (RUNS, 50))
    rate = np.sqrt(2 * -np.log(ALPHA) / (N * 0.25))

    def wealth(count: np.ndarray) -> np.ndarray:
        return np.asarray(count * np.log1p(rate / 2) + (N - count) * np.log1p(-rate / 2))

    honest, chosen = wealth(hits[:, 0]), wealth(hits.max(axis=1))
    assert int((honest >= -np.log(ALPHA)).sum()) <= most_failures(RUNS, ALPHA)
    assert int((chosen >= -np.log(ALPHA)).sum()) > 2 * most_failures(RUNS, ALPHA)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.integers(1, 400), st.floats(1e-4, 0.2))
def test_on_hard_votes_the_bound_is_no_tighter_than_the_exact_one(
    count: int, n: int, alpha: float
) -> None:
    count = min(count, n)
    pilot = pairs_of([50, *[0] * (SCORE_STEPS - 1), 50])
    scores = pairs_of([n - count, *[0] * (SCORE_STEPS - 1), count])
    bound = soft_miss(pilot, scores, n=n, alpha=alpha)
    assert bound >= float(upper_bound_of_miss(count, n, alpha)) * (1 - 1e-6)


def test_soft_beats_hard_if_errors_have_low_confidence() -> None:
    generator = numpy_generator(0, "low confidence errors")
    scores = np.where(generator.random(10_000) < 0.8, 0.9, 0.45)  # 20% hard errors, mildly wrong
    soft = soft_miss(histogram(scores[:100]), histogram(scores), n=10_000, alpha=0.001)
    hard = float(upper_bound_of_miss(int((scores > 0.5).sum()), 10_000, 0.001))
    assert soft < 0.2 < hard


@pytest.mark.parametrize("seed", range(5))
def test_the_bet_is_made_by_the_pilot_alone(seed: int) -> None:
    """A rate that used the scores would void the theorem; here pilot and scores differ."""
    generator = numpy_generator(seed, "pilot of another law")
    pilot, scores = generator.beta(300, 100, 100), generator.beta(3, 1, 2000)
    got = soft_miss(histogram(pilot), histogram(scores), n=2000, alpha=0.001)
    steps, goal = rounded_down(scores), -np.log(0.001) + 1e-6
    rate = np.sqrt(2 * goal / (2000 * rounded_down(pilot).var()))

    def wealth(mean: float) -> float:
        return float(np.log1p(min(rate, 0.999 / mean) * (steps - mean)).sum())

    low, high = 1e-6, float(steps.mean())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if wealth(middle) < goal else (middle, high)
    assert got == pytest.approx(1 - low, rel=1e-6)
    assert abs(got - soft_miss(histogram(scores), histogram(scores), n=2000, alpha=0.001)) > 1e-4


def test_the_bound_keeps_its_margin_in_exact_arithmetic() -> None:
    """The mean it gives is rejected with room for the rounding of its logarithms.

    A pilot without variance bets `LARGEST_BET`, so the wealth is a product of fractions.
    """
    n, alpha, bet = 400, Fraction(1, 1024), Fraction(LARGEST_BET)
    scores = {Fraction(1): 390, Fraction(1, 2): 10}
    bound = soft_miss((1024, 10), (1024, 390, 512, 10), n=n, alpha=float(alpha))
    mean = 1 - Fraction(bound)
    wealth = math.prod((1 + bet * (score / mean - 1)) ** count for score, count in scores.items())
    assert 1 + Fraction(MARGIN) < wealth * alpha < 1 + 2 * Fraction(MARGIN)


@pytest.mark.parametrize("seed", range(3))
def test_a_bisection_stopped_at_any_time_is_conservative(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is the end of the interval that is rejected."""
    generator = numpy_generator(seed, "bisection")
    pilot, scores = generator.beta(6, 2, 100), generator.beta(6, 2, 1000)

    def bound(bisections: int) -> float:
        monkeypatch.setattr("sween.bounds.scores._BISECTIONS", bisections)
        return soft_miss(histogram(pilot), histogram(scores), n=1000, alpha=0.001)

    bounds = [bound(bisections) for bisections in range(40)]
    assert bounds[0] == 1.0, "nothing was refuted yet"
    assert all(later <= earlier for earlier, later in pairwise(bounds))
    assert bounds[-1] >= bound(100)
    assert bounds[20] - bound(100) < 1e-5


def test_scores_are_rounded_down() -> None:
    """Rounded up, they could exceed the mean they bound."""
    ensemble = WeightedEnsemble([constant(math.log(0.7), math.log(0.3))])
    (row,) = smoothed(ensemble, num_classes=2).certify(images(1), n=500, votes="soft")
    assert row.estimation_scores == (int(0.7 * SCORE_STEPS), 500)


def test_lost_scores_count_as_zero() -> None:
    pilot = histogram(np.full(100, 0.8))
    with_zeros = soft_miss(pilot, (0, 10, 819, 990), n=1000, alpha=0.001)
    assert soft_miss(pilot, (819, 990), n=1000, alpha=0.001) == with_zeros
    assert soft_miss(pilot, (), n=1000, alpha=0.001) == 1.0


@pytest.mark.parametrize("pairs", [(1,), (1025, 3), (5, -1), (-5, 1)])
def test_an_invalid_histogram_is_refused(pairs: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="score histogram"):
        soft_miss((1024, 10), pairs, n=10, alpha=0.01)


def test_certificates_follow_the_scores_of_the_ensemble() -> None:
    ensemble, image = small.ensemble().eval(), torch.full((1, 8, 8), 0.4)
    first, second = (
        smoothed(ensemble, batch_size=size).certify_one(image, n=3_000, votes="soft", seed=0)
        for size in (100, 3000)
    )
    assert first.estimation_scores == second.estimation_scores
    assert first.votes == "soft"
    assert first.radius_two_class is None
    hard = smoothed(ensemble).certify_one(image, n=3_000, seed=0)
    assert hard.estimation_counts == first.estimation_counts, "the same noise, the same hard votes"
    assert (hard.estimation_scores, hard.votes) == (None, "hard")
    pairs = first.estimation_scores
    assert pairs is not None
    assert sum(pairs[1::2]) == 3_000
    mean = sum(b * c for b, c in zip(pairs[::2], pairs[1::2], strict=True)) / 1024 / 3_000
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        noisy = image + 0.5 * torch.randn(20_000, 1, 8, 8, generator=generator)
        truth = float(ensemble(noisy)[:, first.candidate].mean())
    assert abs(mean - truth) < 0.02
    assert first.lower_bound < truth
    assert from_row(Certificate, to_row(first)) == first


def test_a_run_with_soft_votes_resumes_and_verifies_and_forgeries_are_found(
    tmp_path: Path,
) -> None:
    line = f"certify {ZOO} --indices 0:4 --n 2000 --votes soft --quiet --out {tmp_path}"
    path = tmp_path / "certificates.jsonl"
    succeed(line)
    assert succeed(f"verify {tmp_path}").startswith("4 rows re-derived")
    rows = [json.loads(text) for text in path.read_bytes().splitlines()]
    path.write_bytes(to_line(rows[0]))
    succeed(line)
    again = [json.loads(text) for text in path.read_bytes().splitlines()]
    assert [row["radius"] for row in again] == [row["radius"] for row in rows]
    for change, message in (
        ({"estimation_scores": [1024, 2000]}, "the votes give"),
        ({"estimation_scores": [1024, 1999]}, "are of 1999 votes"),
        ({"estimation_scores": None}, "missing with soft votes"),
        ({"votes": "hard"}, "given with hard votes"),
    ):
        forged = again[1] | change
        forged["checksum"] = row_checksum(forged)
        path.write_bytes(b"".join(to_line(row) for row in (again[0], forged, *again[2:])))
        code, _, stderr = run_line(f"verify {tmp_path}")
        assert code == 1
        assert message in stderr, stderr


@pytest.mark.parametrize(
    ("of", "options", "message"),
    [
        ({"member_names": ["a", "b", "c"]}, {}, "one classifier"),
        ({"exit": "exact"}, {}, "a mean needs every member"),
        ({"model": small.members()[0]}, {}, "expected a WeightedEnsemble"),
        ({}, {"sampling": "decide", "radii": (0.5,)}, "expected sampling fixed, got decide"),
        ({}, {"bound": "two-class"}, "expected bound cohen, got two-class"),
        ({}, {"votes": "sotf"}, "did you mean 'soft'"),
    ],
)
def test_soft_votes_need_an_ensemble_without_an_exit_and_a_fixed_number_of_votes(
    of: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        smoothed(**of).certify_voters(images(1), CertifySettings(**{"votes": "soft"} | options))
