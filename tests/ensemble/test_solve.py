"""Solving weights of real members on noisy images."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

from sween.data import as_image_set
from sween.ensemble import WeightedEnsemble, probabilities, solve_weights
from sween.ensemble.probabilities import noisy_probabilities, smoothed_probabilities
from sween.ensemble.simplex import log_loss, minimise_log_loss, optimality_gap
from sween.ensemble.solve import METHODS
from sween.errors import BadInput, ContractError
from tests.smoothing.small import Computed

SIGMA = 0.5


def _leaning(sharpness: float, blind: int) -> Computed:
    """Logits that lean to the class whose pixel is brightest, with a sharpness and a blind spot."""

    def logits(x: torch.Tensor) -> torch.Tensor:
        brightness = x.flatten(1).clone()
        brightness[:, blind] = 0.3
        return sharpness * brightness

    return Computed(logits)


def _problem(count: int = 60) -> tuple[WeightedEnsemble, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = 0.3 * torch.rand(count, 1, 2, 2, generator=generator)
    images.view(count, 4)[torch.arange(count), labels] += 0.7
    members = [_leaning(2.0, 0), _leaning(3.0, 1), _leaning(2.5, 2)]
    return WeightedEnsemble(members), images, labels


def test_convex_minimises_the_papers_empirical_risk() -> None:
    ensemble, images, labels = _problem()
    solution = solve_weights(
        ensemble, images, labels, sigma=SIGMA, method="convex", samples=150, seed=3
    )
    matrix = smoothed_probabilities(ensemble, images, labels, sigma=SIGMA, samples=150, seed=3)
    assert solution.gap < 1e-9
    assert solution.loss == pytest.approx(minimise_log_loss(matrix).loss, abs=1e-12)
    assert ensemble.weights.tolist() == list(solution.weights)
    assert max(solution.weights) < 0.9  # no member is enough alone


@pytest.mark.parametrize("batch_size", [51, 60])
def test_batches_of_sgd_may_be_evaluated_together(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble, images, labels = _problem()

    def solved() -> tuple[float, ...]:
        return solve_weights(
            ensemble, images, labels, sigma=SIGMA, samples=1, epochs=5, batch_size=batch_size
        ).weights

    one_by_one = solved()
    monkeypatch.setattr(probabilities, "CPU_BLOCKS", 40)
    together = solved()
    assert together == pytest.approx(one_by_one, abs=1e-6)
    assert len(set(one_by_one)) == 3


def test_smoothed_probabilities_are_plain_averages() -> None:
    """Against a slow loop with independent noise: equal up to Monte Carlo error."""
    ensemble, images, labels = _problem(8)
    matrix = smoothed_probabilities(ensemble, images, labels, sigma=SIGMA, samples=4000, seed=0)
    generator = torch.Generator().manual_seed(1)
    for i in range(8):
        for k, member in enumerate(ensemble.members):
            noise = torch.randn(4000, 1, 2, 2, generator=generator)
            chances = torch.softmax(member(images[i] + SIGMA * noise), dim=1)[:, labels[i]]
            error = float(chances.std()) * (2 / 4000) ** 0.5
            assert abs(float(chances.mean()) - matrix[i, k]) < 6 * error


def test_each_member_has_its_own_noise() -> None:
    """delta_ijk of Definition 2 is independent across members."""
    twin = _leaning(2.0, 0)
    _, images, labels = _problem(5)
    ensemble = WeightedEnsemble([twin, twin])
    matrix = smoothed_probabilities(ensemble, images, labels, sigma=SIGMA, samples=50, seed=0)
    assert np.all(matrix[:, 0] != matrix[:, 1])
    noisy = noisy_probabilities(ensemble, images, labels, sigma=SIGMA, draws=50, seed=0)
    assert np.all(noisy[:, 0] == noisy[:, 1])


def test_sgd_reaches_the_optimum_of_its_own_program() -> None:
    """It minimises the expected loss on single noisy inputs, which is convex too."""
    ensemble, images, labels = _problem()
    solution = solve_weights(ensemble, images, labels, sigma=SIGMA, method="sgd", samples=200)
    matrix = noisy_probabilities(ensemble, images, labels, sigma=SIGMA, draws=400, seed=99)
    optimum = minimise_log_loss(matrix)
    weights = np.asarray(solution.weights)
    assert log_loss(matrix, weights) - optimum.loss < 1e-3
    uniform = log_loss(matrix, np.full(3, 1 / 3))
    assert log_loss(matrix, weights) - optimum.loss < 0.2 * (uniform - optimum.loss)
    assert 0 <= solution.gap < 0.02


def test_the_two_programs_differ() -> None:
    """By Jensen's inequality the smoothed ensemble's loss is the smaller one."""
    ensemble, images, labels = _problem()
    uniform = np.full(3, 1 / 3)
    smoothed = smoothed_probabilities(ensemble, images, labels, sigma=SIGMA, samples=400, seed=0)
    noisy = noisy_probabilities(ensemble, images, labels, sigma=SIGMA, draws=400, seed=0)
    assert log_loss(smoothed, uniform) < log_loss(noisy, uniform)


def test_uniform_weights_come_with_their_gap() -> None:
    ensemble, images, labels = _problem()
    ensemble.weights = [1.0, 0.0, 0.0]
    solution = solve_weights(ensemble, images, labels, sigma=SIGMA, method="uniform", seed=3)
    matrix = smoothed_probabilities(ensemble, images, labels, sigma=SIGMA, samples=100, seed=3)
    assert solution.weights == pytest.approx((1 / 3,) * 3)
    assert solution.gap == pytest.approx(optimality_gap(matrix, np.full(3, 1 / 3)))
    assert solution.loss - minimise_log_loss(matrix).loss <= solution.gap


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_weights(method: str) -> None:
    results = []
    for seed in (0, 0, 1):
        ensemble, images, labels = _problem(20)
        solved = solve_weights(
            ensemble, images, labels, sigma=SIGMA, method=method, seed=seed, epochs=5
        )
        results.append((solved.weights, solved.loss))
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.parametrize("method", METHODS)
def test_images_read_by_batches_give_the_same_weights(method: str) -> None:
    """As held-out images that do not fit in memory are read."""
    ensemble, images, labels = _problem(20)
    read: list[int] = []

    class Items(torch_data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, position: int) -> torch.Tensor:
            read.append(position)
            return images[position]

    sets = (images, as_image_set(Items()))
    solved = [
        solve_weights(ensemble, one, labels, sigma=SIGMA, method=method, epochs=2, samples=20)
        for one in sets
    ]
    assert (solved[0].weights, solved[0].loss) == (solved[1].weights, solved[1].loss)
    assert set(read) == set(range(20))


def test_a_biased_member_gets_little_weight() -> None:
    _, images, labels = _problem()
    ensemble = WeightedEnsemble([_leaning(2.0, 0), Computed(lambda x: -3 * x.flatten(1))])
    for method in ("convex", "sgd"):
        solution = solve_weights(ensemble, images, labels, sigma=SIGMA, method=method)
        assert solution.weights[1] < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "konvex"}, "did you mean 'convex'"),
        ({"sigma": -1}, "sigma"),
        ({"sigma": ".5"}, r"sigma: expected a number, got '\.5'"),
        ({"epochs": "9"}, "epochs: expected a whole number, got '9'"),
        ({"samples": 0}, "samples"),
        ({"method": "sgd", "batch_size": 0}, "batch_size"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, "labels"),
        ({"labels": torch.full((5,), 4)}, "classes 0 to 3"),
        ({"images": torch.full((5, 1, 2, 2), 255.0)}, "images"),
        ({"images": np.zeros((5, 1, 2, 2), np.float32)}, "images: expected a float32 torch tensor"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    ensemble, images, labels = _problem(5)
    arguments: dict[str, Any] = {"images": images, "labels": labels, "sigma": SIGMA} | change
    with pytest.raises(BadInput, match=message):
        solve_weights(ensemble, **arguments)


def test_members_with_different_numbers_of_classes_are_refused() -> None:
    _, images, labels = _problem(5)
    ensemble = WeightedEnsemble([_leaning(2.0, 0), Computed(lambda x: x.flatten(1)[:, :3])])
    with pytest.raises(ContractError, match=r"same number of classes.*\[4, 3\]"):
        solve_weights(ensemble, images, labels % 3, sigma=SIGMA)
