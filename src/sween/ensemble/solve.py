"""Solves for the ensemble weights on held-out images."""

import dataclasses
import math
import time

import numpy as np
import torch

from sween.arguments import real_number, whole_number
from sween.bounds.radius import radius_cohen
from sween.data.dataset import ImageSet
from sween.data.validation import check_images
from sween.ensemble.probabilities import (
    noisy_batches,
    noisy_margins,
    noisy_probabilities,
    pick,
    smoothed_probabilities,
)
from sween.ensemble.radius_weights import RadiusObjective, maximise_radius
from sween.ensemble.simplex import (
    PROBABILITY_FLOOR,
    Matrix,
    SimplexSolution,
    check_probabilities,
    log_loss,
    minimise_log_loss,
    optimality_gap,
)
from sween.ensemble.weighted import WeightedEnsemble, member_probabilities
from sween.errors import BadInput, ContractError, UnknownName
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.progress import track
from sween.sampling.settings import ALPHA

METHODS = ("sgd", "convex", "uniform", "acr")
"""The first is the default: it gave the best certified radii among the first three."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightSolution:
    """Solved weights, their loss in nats, and an upper bound (gap) on its excess over the optimum.

    For `convex` and `uniform` loss and gap refer to the paper's empirical risk, the cross-entropy
    of the smoothed ensemble. For `sgd` they refer to its own objective, the expected cross-entropy
    of the ensemble on one noisy input, estimated on noise that was not used for solving.
    Cross-entropy is convex, so by Jensen's inequality the second loss is never below the first. For
    `acr` the loss is minus the mean radius that `samples` votes certify on the held-out images, in
    units of pixels; it was maximised on the same votes, so it is optimistic, and its gap is only
    the distance to the largest radius that so many votes can certify.

    Attributes:
        method: convex, sgd, uniform or acr.
        weights: of the members; non-negative, with sum 1.
        loss: at these weights, in nats; of `acr` minus the mean radius that it certifies.
        gap: upper bound on the distance of the loss to the optimum.
        iterations: Newton steps of convex, epochs of sgd, gradient steps of acr, 0 for uniform.
        samples: noise draws per image.
        seed: of all noise.
        seconds: wall-clock time.

    Example:
        See `weigh`.
    """

    method: str
    weights: tuple[float, ...]
    loss: float
    gap: float
    iterations: int
    samples: int
    seed: int
    seconds: float


def solve_weights(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    *,
    sigma: float,
    method: str = METHODS[0],
    samples: int = 100,
    seed: int = 0,
    epochs: int = 100,
    batch_size: int = 100,
    quiet: bool = True,
) -> WeightSolution:
    """Solve for the weights and set them on the ensemble.

    - `convex` minimises the paper's empirical risk (Definition 2): for each image and member the
      softmax is averaged over `samples` independent noise draws, then the convex program is
      solved; the optimality gap is reported.
    - `sgd` is the paper's practice, stochastic gradient descent with Gaussian augmentation, one
      noisy copy at a time; here by exponentiated gradient steps, which stay on the simplex, with
      averaged iterates. It minimises E[-log sum_k w_k p_k(x + noise)], another convex objective.
    - `uniform` sets equal weights, with their loss and gap.
    - `acr` maximises the mean radius that `samples` votes certify on these images, by gradients of
      a smooth surrogate (`radius_weights.py`); starts from equal weights and from the optimum of
      sgd's objective, and is never below either in the mean radius. More samples tell larger
      radii apart: 100 votes certify at most 1.50 sigma, 1,000 at most 2.46.

    Args:
        ensemble: its members are evaluated but not changed.
        images: (N, C, H, W) in [0, 1], disjoint from the members' training images; or an
            `ImageSet`, which is read by batches and may be larger than memory.
        labels: (N,) true classes.
        sigma: the noise level to be certified.
        method: convex, sgd, uniform or acr.
        samples: noise draws per image for the smoothed probabilities.
        seed: of all noise.
        epochs: for sgd.
        batch_size: for sgd.
        quiet: no progress display.

    Example:
        >>> import sween
        >>> held_out = sween.load_dataset("digits").weights
        >>> images, labels = held_out.images(range(50)), held_out.labels[:50]
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> solution = sween.solve_weights(
        ...     ensemble, images, labels, sigma=0.5, method="convex", samples=10
        ... )
        >>> solution.gap < 1e-9, abs(sum(ensemble.weights.tolist()) - 1) < 1e-9
        (True, True)
    """
    _check(images, labels, sigma=sigma, method=method)
    for name, value in (("samples", samples), ("epochs", epochs), ("batch_size", batch_size)):
        if whole_number(name, value) < 1:
            raise BadInput(name, expected="at least 1", got=value, fix="raise it")
    started = time.perf_counter()
    with evaluating(ensemble):
        _check_classes(ensemble, pick(images, torch.tensor([0]), device_of(ensemble)))
        if method == "sgd":
            descended = _descend(ensemble, images, labels, sigma, seed, epochs, batch_size, quiet)
            matrix = noisy_probabilities(
                ensemble, images, labels, sigma=sigma, draws=samples, seed=seed
            )
            solution = _evaluated(matrix, descended, epochs)
        elif method == "acr":
            solution = _maximise_radius(ensemble, images, labels, sigma, samples, seed, quiet)
        else:
            matrix = smoothed_probabilities(
                ensemble, images, labels, sigma=sigma, samples=samples, seed=seed, quiet=quiet
            )
            equal = np.full(matrix.shape[1], 1 / matrix.shape[1])
            convex = method == "convex"
            solution = minimise_log_loss(matrix) if convex else _evaluated(matrix, equal, 0)
    ensemble.weights = torch.from_numpy(solution.weights)
    return WeightSolution(
        method=method,
        weights=tuple(ensemble.weights.tolist()),
        loss=solution.loss,
        gap=solution.gap,
        iterations=solution.iterations,
        samples=samples,
        seed=seed,
        seconds=time.perf_counter() - started,
    )


def _maximise_radius(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    sigma: float,
    samples: int,
    seed: int,
    quiet: bool,
) -> SimplexSolution:
    if not radius_cohen(samples, samples, alpha=ALPHA, sigma=sigma):
        raise BadInput(
            "samples",
            expected="enough votes to certify a radius, at least 10 with method acr",
            got=samples,
            fix="try 400",
        )
    margins, matrix = noisy_margins(
        ensemble, images, labels, sigma=sigma, draws=samples, seed=seed, quiet=quiet
    )
    objective = RadiusObjective(margins, samples=samples, sigma=sigma)
    members = len(ensemble.members)
    starts = [np.full(members, 1 / members), minimise_log_loss(matrix).weights]
    found = maximise_radius(
        objective, [torch.from_numpy(start).to(margins.device) for start in starts], quiet=quiet
    )
    return SimplexSolution(
        np.asarray(found.weights.cpu().numpy()),
        -found.radius,
        found.largest - found.radius,
        found.steps,
    )


def _evaluated(probabilities: Matrix, weights: Matrix, iterations: int) -> SimplexSolution:
    matrix = check_probabilities(probabilities)
    loss, gap = log_loss(matrix, weights), optimality_gap(matrix, weights)
    return SimplexSolution(weights, loss, gap, iterations)


@torch.inference_mode()
def _check_classes(ensemble: WeightedEnsemble, images: torch.Tensor) -> None:
    counts = [member_probabilities(member, images).shape[1] for member in ensemble.members]
    if len(set(counts)) > 1:
        raise ContractError(
            f"members: expected the same number of classes in each, got {counts}; combine only "
            "members trained on the same data set"
        )


def _check(
    images: torch.Tensor | ImageSet, labels: torch.Tensor, *, sigma: float, method: str
) -> None:
    if method not in METHODS:
        raise UnknownName("weight method", method, METHODS)
    if isinstance(images, ImageSet):
        shape: tuple[int, ...] = (len(images), *images.image_shape)
    else:
        check_images(images)
        shape = tuple(images.shape)
    if len(shape) != 4 or len(images) != len(labels) or len(images) == 0:
        raise BadInput(
            "labels",
            expected="one label per image, and at least one image",
            got=f"images {shape}, labels {tuple(labels.shape)}",
            fix="pass images (N, C, H, W) and labels (N,)",
        )
    if not 0 < real_number("sigma", sigma) < float("inf"):
        raise BadInput("sigma", expected="a positive number", got=sigma, fix="try 0.5")


@torch.inference_mode()
def _descend(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    sigma: float,
    seed: int,
    epochs: int,
    batch_size: int,
    quiet: bool,
) -> Matrix:
    """Exponentiated gradient with adaptive steps; returns the average of the second half."""
    members = len(ensemble.members)
    log_weights = torch.zeros(members, dtype=torch.float64)
    average = torch.zeros(members, dtype=torch.float64)
    total_steps = epochs * -(-len(images) // batch_size)
    squares, averaged, step = 0.0, 0, 0
    batches = noisy_batches(
        ensemble, images, labels, sigma=sigma, seed=seed, epochs=epochs, batch_size=batch_size
    )
    with track("descend on weights", total_steps, quiet=quiet) as advance:
        for probabilities in batches:
            matrix = probabilities.clamp_min(PROBABILITY_FLOOR)
            weights = log_weights.softmax(dim=0)
            # d_k - 1: the negative gradient up to a constant, to which a softmax is invariant.
            descent = (matrix / (matrix @ weights)[:, None]).mean(dim=0) - 1
            squares += float(descent.abs().max()) ** 2
            # Mirror descent with adaptive steps: log(K)^.5 over the root of the sum of squares.
            log_weights = log_weights + descent * (math.log(members + 1) / (squares or 1)) ** 0.5
            step += 1
            if 2 * step > total_steps:
                average += log_weights.softmax(dim=0)
                averaged += 1
            advance(1, "")
    return np.asarray((average / averaged).numpy())
