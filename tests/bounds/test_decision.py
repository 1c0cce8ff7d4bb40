"""Decisions from votes, and settings that could never certify anything."""

import dataclasses
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sween.bounds.decision import (
    binomial_p_value,
    decide,
    decide_prediction,
    decide_radii,
    decide_soft,
)
from sween.bounds.radius import radius_cohen, radius_two_class
from sween.errors import BadInput, SmallSampleWarning
from sween.records import ABSTAIN
from sween.sampling.settings import CertifySettings
from sween.smoothing.prediction import Prediction, check_predict_settings
from tests.smoothing.reference import binomial_lower_tail, exact_upper_bound


def test_both_radii_are_kept_and_the_chosen_bound_decides() -> None:
    cohen, two_class = (
        decide([10, 90], [450, 550], alpha=0.001, sigma=0.5, bound=bound)
        for bound in ("cohen", "two-class")
    )
    expected = float(radius_two_class(550, 450, 1000, alpha=0.001, sigma=0.5))
    assert two_class.radius == two_class.radius_two_class == cohen.radius_two_class == expected
    expected = float(radius_cohen(550, 1000, alpha=0.001, sigma=0.5))
    assert cohen.radius == cohen.radius_cohen == two_class.radius_cohen == expected
    assert cohen.candidate == two_class.candidate == 1


@pytest.mark.parametrize(("bound", "share"), [("cohen", 1.0), ("two-class", 0.9)])
def test_the_lower_bound_is_at_the_level_that_its_row_spends_on_the_class(
    bound: str, share: float
) -> None:
    """At another level it would fail too often, or would not match the radius."""
    decision = decide([90, 10], [550, 450], alpha=0.001, sigma=0.5, bound=bound)
    exact = 1 - exact_upper_bound(450, 1000, mpmath.mpf(share) / 1000)
    assert -1e-8 < decision.lower_bound / exact - 1 <= 0


@pytest.mark.parametrize(
    ("selection", "estimation", "candidate", "prediction"),
    [
        ([60, 40], [500, 500], 0, ABSTAIN),  # an abstention keeps its candidate
        ([51, 49], [1, 999], 0, ABSTAIN),  # the selection votes alone choose the class
        ([0, 50, 50], [0, 900, 100], 1, 1),  # a tie goes to the lowest class, not to chance
    ],
)
def test_selection_votes_choose_and_estimation_votes_decide(
    selection: list[int], estimation: list[int], candidate: int, prediction: int
) -> None:
    decision = decide(selection, estimation, alpha=0.001, sigma=0.5)
    assert (decision.candidate, decision.prediction) == (candidate, prediction)
    assert (decision.radius > 0) == (prediction != ABSTAIN)


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_p_value_is_that_of_scipy_rounded_up(first: int, second: int) -> None:
    top, bottom = max(first, second), min(first, second)
    if top == 0:
        return
    exact = stats.binomtest(top, top + bottom, 0.5).pvalue
    assert binomial_p_value(top, bottom) >= exact * (1 - 1e-12)
    assert binomial_p_value(top, bottom) <= exact * (1 + 1e-8)


@pytest.mark.parametrize("top", [999, 1_000, 1_001, 10**6 - 1, 5 * 10**7, 374_369_891])
@pytest.mark.parametrize("deviations", [0.1, 1, 3.3, 10, 25])
def test_the_p_value_is_never_below_fifty_digits(top: int, deviations: float) -> None:
    second = max(0, top - round(deviations * (2 * top) ** 0.5))
    exact = 2 * binomial_lower_tail(second, top + second, 0.5)
    assert 0 <= binomial_p_value(top, second) / exact - 1 < 2e-9


WRONG_VOTES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (decide, ([], []), {}, "two or more classes"),
    (decide, ([1], [1]), {}, "two or more classes"),
    (decide, ([5, 5], [100, 0, 0]), {}, "2 classes.*got 3"),
    (decide, ([5, 5], [-5, 105]), {}, "none negative"),
    (decide, ([5, 5], [0.5, 99.5]), {}, "whole numbers"),
    (decide, ([1, 9], [10, 90]), {"n": 99}, "at least 100.*got 99"),
    (decide_radii, ([1, 9], [10, 990], [0.5]), {"largest": 999}, "largest.*got 999"),
    (decide_radii, ([1, 9], [10, 990], [0.5]), {"largest": 9_999, "n": 999}, "at least 1000"),
    (decide_radii, ([1, 9], [10, 990], [float("nan")]), {"largest": 9_999}, "radii.*nan"),
    (decide_soft, ([3, 97], [500, 5], [500, 50, 1000, 950]), {"n": 999}, "at least 1000"),
    (decide_soft, ([3, 97], [], []), {"n": 0}, "at least 1,"),
]


@pytest.mark.parametrize(("call", "votes", "options", "said"), WRONG_VOTES)
def test_votes_that_cannot_have_been_drawn_are_refused(
    call: Callable[..., Any], votes: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    """Some of them would give a larger radius, or none that is a number."""
    with pytest.raises(BadInput, match=said):
        call(*votes, alpha=0.001, sigma=0.5, **options)


@pytest.mark.parametrize(("counts", "options"), [([5], {}), ([50, 60], {"n": 20}), ([], {})])
def test_a_prediction_from_such_votes_is_refused(
    counts: list[int], options: dict[str, int]
) -> None:
    with pytest.raises(BadInput):
        decide_prediction(counts, alpha=0.001, **options)
    with pytest.raises(BadInput, match="alpha"):
        decide_prediction([50, 51], alpha=1.5)
    with pytest.raises(BadInput, match="got -1"):
        binomial_p_value(10, -1)


def test_predict_abstains_by_the_binomial_test() -> None:
    assert decide_prediction([95, 5], alpha=0.001)[0] == 0
    assert decide_prediction([55, 45], alpha=0.001)[0] == ABSTAIN
    assert decide_prediction([5, 50, 50], alpha=0.9999)[0] == ABSTAIN
    assert decide_prediction([0, 3, 11 + 3], alpha=0.05)[0] == 2


@pytest.mark.parametrize(("n", "bound", "least"), [(9, "cohen", 10), (10, "two-class", 11)])
def test_an_n_that_can_never_certify_is_refused_with_the_arithmetic(
    n: int, bound: str, least: int
) -> None:
    with pytest.raises(BadInput, match=rf"{n} of {n} votes only show p > 0\..*n >= {least}"):
        CertifySettings(n=n, bound=bound)


@pytest.mark.parametrize("bound", ["cohen", "two-class"])
def test_a_small_n_warns_with_the_votes_it_needs(bound: str) -> None:
    with pytest.warns(SmallSampleWarning, match="at least 18 of 20"):
        CertifySettings(n=20, bound=bound)
    CertifySettings(n=200, bound=bound)


def test_predict_refuses_an_n_that_always_abstains() -> None:
    with pytest.raises(BadInput, match=r"2 \* 2\^-10 = 0\.001953.*n >= 11"):
        check_predict_settings(n=10, alpha=0.001, sigma=0.5)
    with pytest.warns(SmallSampleWarning, match="at least 11 of 11"):
        check_predict_settings(n=11, alpha=0.001, sigma=0.5)
    check_predict_settings(n=100, alpha=0.001, sigma=0.5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("alpha", 0.0, "alpha"),
        ("alpha", 1.0, "alpha"),
        ("alpha", float("nan"), "alpha"),
        ("n0", 0, "n0"),
        ("n", 0, "n"),
        *(("n", wrong, "n: expected a whole number") for wrong in (200.0, True, "200")),
        ("bound", "cohn", "did you mean 'cohen'"),
        ("sampling", "fixd", "did you mean 'fixed'"),
    ],
)
def test_impossible_settings_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CertifySettings(**{field: value})


def test_any_integer_type_is_accepted() -> None:
    settings = CertifySettings(n=np.int64(200), n0=np.int32(50))  # type: ignore[arg-type]
    assert (settings.n, settings.n0) == (200, 50)
    assert type(settings.n) is int


def test_a_prediction_prints_in_one_line() -> None:
    settings: dict[str, Any] = {"n": 2000, "alpha": 0.001, "sigma": 0.5, "seed": 0}
    answer = Prediction(index=3, prediction=7, counts=(40, 1960), p_value=1e-9, **settings)
    votes = "1,960 of 2,000 votes (p = 1e-09, alpha = 0.001, sigma = 0.5)"
    assert str(answer) == f"index 3: class 7, {votes}"
    assert str(dataclasses.replace(answer, prediction=ABSTAIN)) == f"index 3: abstained, {votes}"
