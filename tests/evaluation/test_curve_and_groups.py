"""Exact radius-accuracy curves, and which certificates belong together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.evaluation import (
    average_certified_radius,
    by_model,
    certified_accuracy,
    envelope_curve,
    pair_by_index,
    radius_accuracy_curve,
)
from sween.records import Certificate

from .certificates import abstained, certificate, wrong
from .strategies import certificate_lists

STEEP = [certificate(0, 2.0), certificate(1, 0.1), wrong(2), abstained(3)]


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


def test_by_model_keeps_the_order_of_first_appearance() -> None:
    rows = [certificate(i, model=model) for i in (3, 1) for model in ("zebra", "ant")]
    groups = by_model(rows)
    assert list(groups) == ["zebra", "ant"]
    assert [row.index for row in groups["ant"]] == [3, 1]
    with pytest.raises(BadInput, match=r"index 3 twice \(model ant\)"):
        by_model([*rows, certificate(3, model="ant")])
    with pytest.raises(BadInput, match=r"index 3 twice \(model ant, zebra\).*by_model"):
        average_certified_radius(rows)


def test_pairs_are_sorted_and_matched() -> None:
    left, right = pair_by_index(
        [certificate(2), certificate(1)], [certificate(1, 0.7), certificate(2, 0.9)]
    )
    assert [row.index for row in left] == [row.index for row in right] == [1, 2]
    assert [row.radius for row in right] == [0.7, 0.9]
