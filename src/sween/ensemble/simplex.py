"""Convex optimisation of a mixture's log loss over the simplex. No torch here.

The paper's empirical risk with cross-entropy is -mean log(A w), where row i of A holds each
member's smoothed probability of the true class of image i. It is convex in w, and an optimality
certificate comes for free: with d_k = mean_i A_ik / (A w)_i, the loss at w exceeds the optimum by
at most log(max_k d_k). The method is mix-SQP (Kim et al. 2020): Newton steps whose quadratic
programs are non-negative least squares.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize

from sween.errors import BadInput

Matrix = npt.NDArray[np.float64]

PROBABILITY_FLOOR = 1e-30
"""A probability that underflowed to 0 would make every loss infinite."""

RIDGE = 1e-9
GAP_GOAL = 1e-13


@dataclasses.dataclass(frozen=True)
class SimplexSolution:
    """Weights, their loss, and a bound on how far that is above the optimum."""

    weights: Matrix
    loss: float
    gap: float
    iterations: int


def log_loss(probabilities: Matrix, weights: Matrix) -> float:
    """-mean log(A w), in nats."""
    return float(-np.log(probabilities @ weights).mean())


def optimality_gap(probabilities: Matrix, weights: Matrix) -> float:
    """An upper bound on loss(w) - min loss: log max_k mean_i A_ik / (A w)_i.

    For any w' on the simplex, loss(w) - loss(w') = mean log((Aw')/(Aw)) <= log mean((Aw')/(Aw)) =
    log sum_k w'_k d_k <= log max_k d_k, by Jensen's inequality.
    """
    ratios = (probabilities / (probabilities @ weights)[:, None]).mean(axis=0)
    return max(0.0, float(np.log(ratios.max())))


def check_probabilities(probabilities: Matrix) -> Matrix:
    """A float64 matrix of probabilities, floored away from 0; refuse anything else."""
    matrix = np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise BadInput(
            "probabilities: expected a matrix with one row per image and one column per member, "
            f"got shape {matrix.shape}; pass at least one image and one member"
        )
    if not np.isfinite(matrix).all() or matrix.min() < 0 or matrix.max() > 1 + 1e-6:
        raise BadInput(
            f"probabilities: expected numbers between 0 and 1, got {matrix.min()} to "
            f"{matrix.max()}; pass each member's probability of the true class"
        )
    return np.maximum(matrix, PROBABILITY_FLOOR)


def minimise_log_loss(probabilities: Matrix, *, max_iterations: int = 100) -> SimplexSolution:
    """Weights on the simplex that minimise -mean log(A w), with their optimality gap.

    Args:
        probabilities: A, (images, members), entries in [0, 1].
        max_iterations: the most Newton steps; a handful usually suffice.
    """
    matrix = check_probabilities(probabilities)
    members = matrix.shape[1]
    weights = np.full(members, 1 / members)
    best = SimplexSolution(weights, log_loss(matrix, weights), optimality_gap(matrix, weights), 0)
    for iteration in range(1, max_iterations + 1):
        if best.gap <= GAP_GOAL:
            break
        stepped = _newton_step(matrix, best.weights)
        if stepped is None:
            break
        gap = optimality_gap(matrix, stepped)
        best = SimplexSolution(stepped, log_loss(matrix, stepped), gap, iteration)
    return best


def _newton_step(matrix: Matrix, weights: Matrix) -> Matrix | None:
    """One step of mix-SQP; None if float64 allows no further progress."""
    count, members = matrix.shape
    scaled = matrix / (matrix @ weights)[:, None]
    ratios = scaled.mean(axis=0)
    hessian = scaled.T @ scaled / count
    hessian[np.diag_indices(members)] += RIDGE * np.trace(hessian) / members
    # min over y >= 0 of (y-w)'H(y-w)/2 + (1-d)'(y-w), as least squares on H's Cholesky factor.
    factor = linalg.cholesky(hessian)
    target = linalg.solve_triangular(factor, hessian @ weights + ratios - 1, trans="T")
    goal, _ = optimize.nnls(factor, target)
    direction = goal - weights
    slope = float((1 - ratios) @ direction)
    if slope >= 0:
        return None
    start = _penalised(matrix, weights)
    step = 1.0
    while step > 1e-12:
        trial = weights + step * direction
        # The ulps accept the last step, when the loss cannot decrease further in float64.
        if _penalised(matrix, trial) <= start + 1e-4 * step * slope + 4e-16 * abs(start):
            return np.asarray(trial / trial.sum())
        step /= 2
    return None


def _penalised(matrix: Matrix, weights: Matrix) -> float:
    """-mean log(Aw) + sum w, whose minimum over w >= 0 lies on the simplex."""
    mixed = matrix @ weights
    if mixed.min() <= 0:
        return float("inf")
    return float(-np.log(mixed).mean() + weights.sum())
