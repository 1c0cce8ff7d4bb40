"""Solving weights of real members on noisy images."""

import numpy as np
import pytest
import torch
from torch import nn

from sween.ensemble import WeightedEnsemble, solve_weights
from sween.ensemble.probabilities import noisy_probabilities, smoothed_probabilities
from sween.ensemble.simplex import log_loss, minimise_log_loss, optimality_gap
from sween.ensemble.solve import METHODS
from sween.errors import BadInput, ContractError, UnknownName

SIGMA = 0.5


class _Leaning(nn.Module):
    """Logits that lean to the class whose pixel is brightest, with a sharpness and a blind spot."""

    def __init__(self, sharpness: float, blind: int) -> None:
        super().__init__()
        self.sharpness, self.blind = sharpness, blind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.sharpness * x.flatten(1)
        logits[:, self.blind] = 0.3 * self.sharpness
        return logits


def _problem(count: int = 60) -> tuple[WeightedEnsemble, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = 0.3 * torch.rand(count, 1, 2, 2, generator=generator)
    images.view(count, 4)[torch.arange(count), labels] += 0.7
    members = [_Leaning(2.0, 0), _Leaning(3.0, 1), _Leaning(2.5, 2)]
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
    twin = _Leaning(2.0, 0)
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
def test_one_seed_one_answer(method: str) -> None:
    results = []
    for seed in (0, 0, 1):
        ensemble, images, labels = _problem(20)
        solved = solve_weights(
            ensemble, images, labels, sigma=SIGMA, method=method, seed=seed, epochs=5
        )
        results.append((solved.weights, solved.loss))
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_a_biased_member_gets_little_weight() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -3 * x.flatten(1)

    _, images, labels = _problem()
    ensemble = WeightedEnsemble([_Leaning(2.0, 0), Wrong()])
    for method in ("convex", "sgd"):
        solution = solve_weights(ensemble, images, labels, sigma=SIGMA, method=method)
        assert solution.weights[1] < 0.1


def test_bad_arguments() -> None:
    ensemble, images, labels = _problem(5)
    with pytest.raises(UnknownName, match="did you mean 'convex'"):
        solve_weights(ensemble, images, labels, sigma=SIGMA, method="konvex")
    with pytest.raises(BadInput, match="sigma"):
        solve_weights(ensemble, images, labels, sigma=-1)
    with pytest.raises(BadInput, match="samples"):
        solve_weights(ensemble, images, labels, sigma=SIGMA, samples=0)
    with pytest.raises(BadInput, match="batch_size"):
        solve_weights(ensemble, images, labels, sigma=SIGMA, method="sgd", batch_size=0)
    with pytest.raises(BadInput, match="labels"):
        solve_weights(ensemble, images, labels[:3], sigma=SIGMA)
    with pytest.raises(BadInput, match="classes 0 to 3"):
        solve_weights(ensemble, images, labels + 4, sigma=SIGMA)
    with pytest.raises(BadInput, match="images"):
        solve_weights(ensemble, images * 255, labels, sigma=SIGMA)


def test_members_of_different_class_counts() -> None:
    class Three(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :3]

    _, images, labels = _problem(5)
    with pytest.raises(ContractError, match=r"same number of classes.*\[4, 3\]"):
        solve_weights(WeightedEnsemble([_Leaning(2.0, 0), Three()]), images, labels % 3, sigma=0.5)
