"""The convex solver: gap, speed, an independent solver, awkward matrices."""

import timeit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from sween.ensemble.simplex import Matrix, log_loss, minimise_log_loss, optimality_gap
from sween.errors import BadInput
from sween.seeding import numpy_generator


def _matrix(rows: int, members: int, seed: int, spread: float = 1.5) -> Matrix:
    """True-class probabilities of members that find the same images hard but differ in part."""
    generator = numpy_generator(seed, "simplex")
    shared = generator.normal(1.0, 2.0, (rows, 1))
    skill = generator.normal(0.0, 0.3, (1, members))
    own = generator.normal(0.0, spread, (rows, members))
    return np.asarray(1 / (1 + np.exp(-(shared + skill + own))))


@pytest.mark.parametrize("members", [6, 100])
@pytest.mark.parametrize("seed", range(5))
def test_the_gap_is_closed_in_a_tenth_of_a_second(members: int, seed: int) -> None:
    matrix = _matrix(2000, members, seed)
    solution = minimise_log_loss(matrix)
    seconds = timeit.repeat(lambda: minimise_log_loss(matrix), number=1, repeat=3)
    assert solution.gap < 1e-9
    assert min(seconds) < 0.1
    assert solution.weights.min() >= 0
    assert solution.weights.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("members", [2, 3, 6])
def test_loss_agrees_with_an_independent_solver(members: int) -> None:
    matrix = _matrix(500, members, seed=members)
    solution = minimise_log_loss(matrix)
    other = optimize.minimize(
        lambda w: log_loss(matrix, w),
        np.full(members, 1 / members),
        jac=lambda w: -(matrix / (matrix @ w)[:, None]).mean(axis=0),
        bounds=[(0, 1)] * members,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert solution.loss == pytest.approx(other.fun, abs=1e-9)
    assert solution.loss <= other.fun + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 10**6), st.floats(0.0, 6.0))
def test_the_gap_bounds_the_distance_to_the_optimum(
    rows: int, members: int, seed: int, spread: float
) -> None:
    matrix = _matrix(rows, members, seed, spread)
    optimum = minimise_log_loss(matrix)
    assert optimum.gap < 1e-9
    weights = numpy_generator(seed, "any weights").dirichlet(np.ones(members))
    distance = log_loss(matrix, weights) - optimum.loss
    assert -1e-9 <= distance <= optimality_gap(matrix, weights) + 1e-9


def test_useless_and_equal_members_and_a_single_one_are_solved() -> None:
    matrix = _matrix(200, 3, seed=0)
    matrix[:, 0] = 0.0
    matrix[7] = 0.0
    assert minimise_log_loss(matrix).weights[0] == 0.0
    twice = np.concatenate([matrix[:, 1:], matrix[:, 1:]], axis=1)
    assert minimise_log_loss(twice).gap < 1e-9
    assert minimise_log_loss(matrix[:, 1:2]).weights.tolist() == [1.0]


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((0, 3)), np.zeros(3), np.array([[0.5, 1.5]]), np.array([[0.5, np.nan]]), -np.eye(2)],
)
def test_matrices_that_are_not_probabilities_are_refused(wrong: Matrix) -> None:
    with pytest.raises(BadInput, match="probabilities"):
        minimise_log_loss(wrong)
