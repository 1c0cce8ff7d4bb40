"""The gamma-robustness index of Definition 1 and its three cases of Proposition 1."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.evaluation import (
    average_certified_radius,
    certified_accuracy,
    certified_at,
    log_average_volume,
    log_volume,
    robustness_index,
)
from sween.records import Certificate

from .certificates import abstained, certificate, wrong
from .strategies import certificate_lists

FOUR = [certificate(0, 0.5), certificate(1, 1.0), wrong(2, 2.0), abstained(3)]


@given(certificate_lists(), st.floats(1e-6, 4))
def test_certified_accuracy_and_acr_are_two_of_its_cases(
    rows: list[Certificate], threshold: float
) -> None:
    accuracy = certified_accuracy(rows, [threshold])[0]
    assert robustness_index(rows, certified_at(threshold)) == pytest.approx(accuracy)
    assert robustness_index(rows, lambda radii: radii) == average_certified_radius(rows)


def test_wrong_and_abstained_images_count_with_gamma_of_zero() -> None:
    assert robustness_index(FOUR, lambda radii: radii + 1.0) == (1.5 + 2.0 + 1.0 + 1.0) / 4
    assert robustness_index(FOUR, certified_at(0.0)) == 1.0
    assert certified_accuracy(FOUR, [0.0])[0] == 0.5


@pytest.mark.parametrize(
    ("dimension", "volume"), [(1, 2.0), (2, math.pi), (3, 4 / 3 * math.pi), (4, math.pi**2 / 2)]
)
def test_volumes_of_balls(dimension: int, volume: float) -> None:
    expected = [0.0, volume, volume * 2**dimension]
    assert np.exp(log_volume(np.array([0.0, 1.0, 2.0]), dimension)) == pytest.approx(expected)


def test_average_volume_by_hand_in_the_plane() -> None:
    mean = math.pi * (0.25 + 1.0) / 4
    assert math.exp(log_average_volume(FOUR, 2)) == pytest.approx(mean)
    by_index = robustness_index(FOUR, lambda radii: np.exp(log_volume(radii, 2)))
    assert by_index == pytest.approx(mean)


def test_volume_of_cifar_images_matches_fifty_digits() -> None:
    dimension, radii = 3072, [1.9, 1.8999, 0.3, 0.0]
    rows = [certificate(index, radius) for index, radius in enumerate(radii)]
    with mpmath.workdps(50):
        unit = mpmath.pi ** (dimension / mpmath.mpf(2)) / mpmath.gamma(dimension / 2 + 1)
        mean = unit * sum(mpmath.mpf(radius) ** dimension for radius in radii) / len(radii)
        expected = float(mpmath.log(mean))
        one = float(mpmath.log(unit * mpmath.mpf(1.9) ** dimension))
    assert log_average_volume(rows, dimension) == pytest.approx(expected, rel=1e-12)
    assert log_volume(1.9, dimension)[0] == pytest.approx(one, rel=1e-12)
    assert math.isfinite(log_average_volume([certificate(0, 1e300)], dimension))
    assert math.isfinite(log_average_volume([certificate(0, 1e-300)], 150_528))
    assert log_average_volume([wrong(0), abstained(1)], dimension) == -math.inf


def test_a_gamma_that_is_not_elementwise_is_refused() -> None:
    with pytest.raises(BadInput, match=r"gamma.*shape \(\)"):
        robustness_index(FOUR, lambda radii: np.asarray(radii.sum()))
    with pytest.raises(BadInput, match=r"gamma.*a NaN"):
        robustness_index(FOUR, lambda radii: np.full_like(radii, math.nan))


@pytest.mark.parametrize("dimension", [0, -1, 2.0, True])
def test_dimension_is_checked(dimension: int) -> None:
    with pytest.raises(BadInput, match="dimension"):
        log_average_volume(FOUR, dimension)


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_radii_are_checked(radius: float) -> None:
    with pytest.raises(BadInput, match="radii"):
        log_volume(radius, 2)
    with pytest.raises(BadInput, match="radii"):
        certified_at(radius)
