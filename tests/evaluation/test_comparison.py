"""The paired bootstrap: refuses unpaired data, is seeded, bounded in memory, and covers."""

import dataclasses
import math

import numpy as np
import pytest

from sween.errors import BadInput
from sween.evaluation import (
    average_certified_radius,
    bootstrap_over_envelope,
    comparison,
    envelope_curve,
    paired_bootstrap,
    radius_accuracy_curve,
    simultaneous_intervals,
)
from sween.records import Certificate

from .certificates import AUTHORS_LOGS, abstained, certificate, read_authors_log, wrong

FIRST = [certificate(0, 0.5), certificate(1, 1.0), wrong(2), certificate(3, 0.25)]
SECOND = [certificate(0, 0.25), certificate(1, 1.0), abstained(2), wrong(3)]


def as_certificates(radii: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[Certificate]:
    return [certificate(index, float(radius)) for index, radius in enumerate(radii)]


def test_differences_by_hand() -> None:
    interval = paired_bootstrap(FIRST, SECOND, resamples=200)
    assert interval.difference == pytest.approx((0.25 + 0.25) / 4)
    assert interval.first == pytest.approx(average_certified_radius(FIRST))
    assert interval.second == pytest.approx(average_certified_radius(SECOND))
    assert interval.low <= interval.difference <= interval.high
    assert interval.indices == (0, 1, 2, 3)
    same = paired_bootstrap(FIRST, FIRST, resamples=100)
    assert (same.low, same.high, same.excludes_zero) == (0.0, 0.0, False)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([*SECOND[:3], certificate(888, model="other")], r"index 3 only for net \(2 not shared\)"),
        ([*SECOND, SECOND[0]], "index 0 twice"),
        ([*SECOND[:3], certificate(3, label=7)], "label of index 3"),
        ([], "at least one"),
    ],
)
def test_only_the_same_images_are_compared(others: list[Certificate], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        paired_bootstrap(FIRST, others)
    with pytest.raises(BadInput, match=message if others else "others"):
        bootstrap_over_envelope(FIRST, [others] if others else [])


def test_order_of_the_rows_does_not_matter_and_the_seed_does() -> None:
    interval = paired_bootstrap(FIRST, SECOND, resamples=500)
    assert paired_bootstrap(FIRST[::-1], SECOND, resamples=500) == interval
    swapped = paired_bootstrap(SECOND, FIRST, resamples=500)
    assert swapped.low == pytest.approx(-interval.high)
    rng = np.random.default_rng(1)
    left, right = (as_certificates(rng.uniform(0, 1, 50)) for _ in range(2))
    seeded = [paired_bootstrap(left, right, resamples=99, seed=seed).low for seed in (0, 0, 1)]
    assert seeded[0] == seeded[1] != seeded[2]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"resamples": 0}, "resamples"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": math.nan}, "confidence"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], name: str) -> None:
    with pytest.raises(BadInput, match=name):
        paired_bootstrap(FIRST, SECOND, **arguments)  # type: ignore[arg-type]


def test_draws_are_held_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "CHUNK_ELEMENTS", 10)
    interval = paired_bootstrap(FIRST, SECOND, resamples=501)
    assert interval.low <= interval.difference <= interval.high


def test_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    # Paired images: what is common to both models is large and must cancel.
    rng = np.random.default_rng(7)
    true_difference, trials, covered, widths = 0.05, 150, 0, []
    for _ in range(trials):
        common = rng.uniform(0.5, 3.0, 120)
        left = as_certificates(common + true_difference + rng.normal(0, 0.1, 120))
        interval = paired_bootstrap(left, as_certificates(common), resamples=300, confidence=0.9)
        covered += interval.low <= true_difference <= interval.high
        widths.append(interval.high - interval.low)
    # 0.9 +- 4 standard errors of 150 trials
    assert 0.80 <= covered / trials <= 0.98
    # the width of independent draws would be about 0.3
    assert np.mean(widths) == pytest.approx(2 * 1.645 * 0.1 / math.sqrt(120), rel=0.15)


@pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")
def test_the_authors_ensemble_leads_its_best_candidate() -> None:
    interval = paired_bootstrap(read_authors_log("sween3"), read_authors_log("resnet32"))
    assert interval.difference == pytest.approx(0.074, abs=0.002)
    assert interval.excludes_zero
    assert interval.indices == tuple(range(888, 1888))


def test_over_the_envelope_of_one_is_over_that_one() -> None:
    rng = np.random.default_rng(2)
    left, right = (as_certificates(rng.uniform(0, 1, 40).round(1)) for _ in range(2))
    one = bootstrap_over_envelope(left, [right], resamples=300)
    plain = paired_bootstrap(left, right, resamples=300)
    for field in ("first", "second", "difference", "low", "high"):
        assert getattr(one, field) == pytest.approx(getattr(plain, field))


def test_over_the_envelope_again_by_plain_resampling() -> None:
    """Three curves that cross, with ties, wrong answers and abstentions."""
    rng = np.random.default_rng(3)
    radii = [rng.uniform(0, top, 30).round(2) for top in (0.8, 1.0, 1.2)]
    others = [as_certificates(own) for own in radii]
    others[1][4], others[2][5] = wrong(4), abstained(5)
    model = as_certificates(rng.uniform(0, 1.5, 30))

    def difference(picks: list[int]) -> float:
        chosen = [
            [dataclasses.replace(rows[pick], index=place) for place, pick in enumerate(picks)]
            for rows in (model, *others)
        ]
        curves = [radius_accuracy_curve(rows) for rows in chosen[1:]]
        return average_certified_radius(chosen[0]) - envelope_curve(curves).area

    interval = bootstrap_over_envelope(model, others, resamples=150, seed=4)
    assert interval.difference == pytest.approx(difference(list(range(30))))
    draws = np.concatenate(list(comparison._draws(30, 150, 4)))
    plain = [difference([int(pick) for pick in row]) for row in draws]
    assert [interval.low, interval.high] == pytest.approx(np.quantile(plain, [0.025, 0.975]))
    assert interval.second >= max(map(average_certified_radius, others))


def test_simultaneous_intervals_hold_all_at_once() -> None:
    """Certified accuracies at nested radii, whose true values are known; 300 experiments."""
    random = np.random.default_rng(0)
    radii = np.linspace(0.1, 0.9, 9)
    together = alone = 0
    for _ in range(300):
        values = (random.random((400, 1)) >= radii).astype(np.float64)
        low, high = simultaneous_intervals(values, resamples=200)
        covered = (low <= 1 - radii) & (1 - radii <= high)
        together += bool(covered.all())
        alone += int(covered.sum())
    assert 0.91 < together / 300 < 0.99
    assert alone / 300 / len(radii) > 0.975, "each alone is wider than 95%"


def test_a_value_that_all_images_share_has_no_width() -> None:
    values = np.stack([np.ones(50), np.arange(50.0)], axis=1)
    low, high = simultaneous_intervals(values, resamples=100)
    assert low[0] == high[0] == 1
    assert low[1] < 24.5 < high[1]


@pytest.mark.parametrize(
    ("values", "got"),
    [
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        (np.zeros((3, 0)), r"shape \(3, 0\)"),
        (np.ones(5), r"shape \(5,\)"),
        (np.full((5, 2), np.nan), "not all finite"),
    ],
)
def test_values_without_means_have_no_intervals(values: np.ndarray, got: str) -> None:
    with pytest.raises(BadInput, match=f"^values: expected finite numbers .*{got}"):
        simultaneous_intervals(values)
