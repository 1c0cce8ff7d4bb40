"""Certified accuracy and ACR by hand, their traps, and their laws."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sween.errors import BadInput, UnknownName
from sween.evaluation import (
    abstention_rate,
    average_certified_radius,
    certified_accuracy,
    counted_radii,
    share_of_images,
)
from sween.records import ABSTAIN, Certificate

from .certificates import AUTHORS_LOGS, abstained, certificate, read_authors_log, wrong
from .strategies import certificate_lists

FOUR = [certificate(0, 0.5), certificate(1, 1.0), wrong(2, 2.0), abstained(3)]


def test_wrong_and_abstained_images_stay_in_the_denominator() -> None:
    accuracies = certified_accuracy(FOUR, [0.0, 0.5, 0.5000001, 1.0, 1.0000001])
    assert accuracies.tolist() == [0.5, 0.5, 0.25, 0.25, 0.0]
    assert accuracies.dtype == np.float64
    assert average_certified_radius(FOUR) == (0.5 + 1.0) / 4
    assert abstention_rate(FOUR) == 0.25
    assert not counted_radii([abstained(0, label=ABSTAIN)]).certified.any()


def test_a_right_answer_of_radius_zero_counts_at_radius_zero_only() -> None:
    rows = [certificate(0, 0.0), wrong(1)]
    assert certified_accuracy(rows, [0.0, 1e-300]).tolist() == [0.5, 0.0]


def test_another_bound_is_judged_by_its_own_abstention() -> None:
    rows = [
        # Cohen abstains, the two-class bound does not: the asked bound's prediction is no guide
        certificate(0, 0.0, prediction=ABSTAIN, candidate=1, radius_two_class=0.4),
        certificate(1, 0.5, radius_two_class=0.7),
        # the two-class bound abstains where the asked one answers
        certificate(2, 0.3, radius_two_class=0.0),
        wrong(3, radius_two_class=0.9),
    ]
    radii, certified = counted_radii(rows, radius="radius_two_class")
    assert radii.tolist() == [0.4, 0.7, 0.0, 0.0]
    assert certified.tolist() == [True, True, False, False]
    assert certified_accuracy(rows, [0.0, 0.5], radius="radius_two_class").tolist() == [0.5, 0.25]
    assert average_certified_radius(rows, radius="radius_two_class") == pytest.approx(1.1 / 4)


@pytest.mark.parametrize("measure", [average_certified_radius, abstention_rate, counted_radii])
def test_no_certificates_are_refused(measure: Callable[[Sequence[Certificate]], object]) -> None:
    with pytest.raises(BadInput, match="at least one"):
        measure([])


def test_a_missing_label_is_refused_by_index() -> None:
    rows = [certificate(0), certificate(17, label=None)]
    with pytest.raises(BadInput, match="label of index 17"):
        average_certified_radius(rows)
    assert abstention_rate(rows) == 0.0


def test_a_null_radius_is_refused_by_index() -> None:
    rows = [certificate(0), certificate(5, radius_two_class=None)]
    with pytest.raises(BadInput, match=r"radius_two_class of index 5: .* got null"):
        certified_accuracy(rows, [0.0], radius="radius_two_class")
    assert average_certified_radius(rows) == 0.5


@pytest.mark.parametrize("radius", [math.nan, math.inf, -0.1])
def test_a_damaged_radius_is_refused(radius: float) -> None:
    with pytest.raises(BadInput, match="radius of index 0"):
        average_certified_radius([certificate(0, radius)])


def test_seeds_may_differ_from_row_to_row() -> None:
    """Each certificate holds on its own, whichever noise it was drawn with."""
    rows = [dataclasses.replace(row, seed=2**40 + row.index) for row in FOUR]
    assert average_certified_radius(rows) == average_certified_radius(FOUR)
    assert certified_accuracy(rows, [0.0, 0.5]).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("images", [1, 5, 100, 1000])
def test_the_interval_of_a_share_is_clopper_pearsons(images: int) -> None:
    """Each end solves its own equation: as many images, or as few, with probability 2.5%."""
    for count in {0, 1, images // 2, images - 1, images}:
        share = share_of_images(count, images)
        assert share.value == count / images
        assert share.low <= share.value <= share.high
        least = stats.binom.sf(count - 1, images, share.low) if count else 0.025
        most = stats.binom.cdf(count, images, share.high) if count < images else 0.025
        assert (least, most) == pytest.approx((0.025, 0.025), rel=1e-4)
    assert (share_of_images(0, images).low, share_of_images(images, images).high) == (0, 1)
    wider = share_of_images(images, images, confidence=0.99)
    assert wider.low < share_of_images(images, images).low


@pytest.mark.parametrize("radii", [[], [-0.25], [math.nan], [math.inf], [[0.0]]])
def test_radii_to_judge_at_are_checked(radii: list[float]) -> None:
    with pytest.raises(BadInput, match="radii"):
        certified_accuracy(FOUR, radii)


def test_an_unknown_field_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'radius_two_class'"):
        counted_radii(FOUR, radius="radius_twoclass")  # type: ignore[arg-type]


@given(certificate_lists(), st.randoms(use_true_random=False))
def test_acr_does_not_depend_on_the_order(rows: list[Certificate], random: Random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert average_certified_radius(shuffled) == average_certified_radius(rows)


@given(certificate_lists())
def test_fast_accuracy_agrees_with_the_definition(rows: list[Certificate]) -> None:
    radii = [0.0, 0.5, 1.0, *(row.radius for row in rows)]
    slow = [sum(row.correct and row.radius >= r for row in rows) / len(rows) for r in radii]
    assert certified_accuracy(rows, radii).tolist() == slow


@pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")
@pytest.mark.parametrize(
    ("name", "acr"), [("sween3", 0.631), ("resnet110", 0.566), ("resnet20", 0.547)]
)
def test_acr_of_the_authors_logs(name: str, acr: float) -> None:
    rows = read_authors_log(name)
    assert len(rows) == 1000
    assert average_certified_radius(rows) == pytest.approx(acr, abs=0.002)
    assert abstention_rate(rows) > 0.05
