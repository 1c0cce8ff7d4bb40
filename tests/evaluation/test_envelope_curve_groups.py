"""Rows of the tables, exact curves, and which certificates belong together."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.evaluation import (
    Scores,
    average,
    average_certified_radius,
    by_model,
    certified_accuracy,
    envelope_curve,
    pair_by_index,
    radius_accuracy_curve,
    score,
    upper_envelope,
)
from sween.records import Certificate

from .certificates import abstained, certificate, wrong
from .strategies import certificate_lists

RADII = (0.0, 0.5, 1.0)
FLAT = [certificate(0, 0.6), certificate(1, 0.6), certificate(2, 0.6), wrong(3)]
STEEP = [certificate(0, 2.0), certificate(1, 0.1), wrong(2), abstained(3)]


def test_scores_by_hand() -> None:
    scores = score(STEEP, RADII)
    assert (scores.radii, scores.count) == (RADII, 4)
    assert scores.accuracies == (0.5, 0.25, 0.25)
    assert scores.acr == pytest.approx(2.1 / 4)


def test_upper_envelope_takes_the_largest_of_each_column() -> None:
    envelope = upper_envelope([score(FLAT, RADII), score(STEEP, RADII)])
    assert envelope.accuracies == (0.75, 0.75, 0.25)
    assert envelope.acr == pytest.approx(2.1 / 4)


def test_average_takes_the_mean_of_each_column() -> None:
    mean = average([score(FLAT, RADII), score(STEEP, RADII)])
    assert mean.accuracies == (0.625, 0.5, 0.125)
    assert mean.acr == pytest.approx((1.8 / 4 + 2.1 / 4) / 2)


@given(st.lists(certificate_lists(min_size=5, max_size=5), min_size=1, max_size=4))
def test_the_envelope_dominates_every_candidate_and_the_average(
    candidates: list[list[Certificate]],
) -> None:
    scores = [score(rows, RADII) for rows in candidates]
    envelope = upper_envelope(scores)
    for one in [*scores, average(scores)]:
        assert np.all(np.array(envelope.accuracies) >= np.array(one.accuracies) - 1e-12)
        assert envelope.acr >= one.acr - 1e-12


@pytest.mark.parametrize("combine", [upper_envelope, average])
def test_scores_of_different_columns_do_not_combine(
    combine: Callable[[Sequence[Scores]], Scores],
) -> None:
    with pytest.raises(BadInput, match="on 3 images"):
        combine([score(FLAT, RADII), score(FLAT[:3], RADII)])
    with pytest.raises(BadInput, match="radii"):
        combine([score(FLAT, RADII), score(FLAT, (0.0,))])
    with pytest.raises(BadInput, match="at least one"):
        combine([])


def test_curve_by_hand() -> None:
    curve = radius_accuracy_curve([*STEEP[:3], certificate(9, 0.1)])
    assert curve.radii.tolist() == [0.1, 2.0]
    assert curve.accuracies.tolist() == [0.75, 0.25]
    assert curve.at([0.0, 0.1, 0.11, 2.0, 2.1]).tolist() == [0.75, 0.75, 0.25, 0.25, 0.0]
    radii, accuracies = curve.corners()
    assert radii.tolist() == [0.0, 0.1, 2.0, 2.0]
    assert accuracies.tolist() == [0.75, 0.75, 0.25, 0.0]


def test_curve_of_nothing_certified_lies_on_the_axis() -> None:
    curve = radius_accuracy_curve([wrong(0), abstained(1)])
    assert curve.area == 0.0
    assert curve.at([0.0, 1.0]).tolist() == [0.0, 0.0]
    assert [points.tolist() for points in curve.corners()] == [[0.0], [0.0]]


@given(certificate_lists())
def test_area_under_the_curve_is_the_acr(rows: list[Certificate]) -> None:
    curve = radius_accuracy_curve(rows)
    assert curve.area == pytest.approx(average_certified_radius(rows), rel=1e-12, abs=1e-15)
    radii = [0.0, 0.25, *(row.radius for row in rows)]
    assert curve.at(radii).tolist() == certified_accuracy(rows, radii).tolist()


@given(st.lists(certificate_lists(min_size=6, max_size=6), min_size=1, max_size=4))
def test_the_envelope_curve_is_the_pointwise_largest(models: list[list[Certificate]]) -> None:
    curves = [radius_accuracy_curve(rows) for rows in models]
    envelope = envelope_curve(curves)
    grid = np.linspace(0, 4, 41)
    expected = np.max([curve.at(grid) for curve in curves], axis=0)
    assert envelope.at(grid).tolist() == expected.tolist()
    assert envelope.area >= max(curve.area for curve in curves) - 1e-12


def test_envelope_curve_needs_a_curve() -> None:
    with pytest.raises(BadInput, match="at least one"):
        envelope_curve([])


def test_by_model_keeps_the_order_of_first_appearance() -> None:
    rows = [certificate(i, model=model) for i in (3, 1) for model in ("zebra", "ant")]
    groups = by_model(rows)
    assert list(groups) == ["zebra", "ant"]
    assert [row.index for row in groups["ant"]] == [3, 1]
    assert by_model([]) == {}


def test_by_model_refuses_an_image_twice() -> None:
    rows = [certificate(1, model="a"), certificate(2, model="a"), certificate(2, model="a")]
    with pytest.raises(BadInput, match=r"index 2 twice \(model a\)"):
        by_model(rows)


def test_pairs_are_sorted_and_matched() -> None:
    left, right = pair_by_index(
        [certificate(2), certificate(1)], [certificate(1, 0.7), certificate(2, 0.9)]
    )
    assert [row.index for row in left] == [row.index for row in right] == [1, 2]
    assert [row.radius for row in right] == [0.7, 0.9]
