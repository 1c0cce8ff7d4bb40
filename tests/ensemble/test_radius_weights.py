"""Weights for the average certified radius: the objective, its gradient, and what it is for."""

import numpy as np
import pytest
import torch

from sween.bounds.radius import radius_cohen
from sween.ensemble import WeightedEnsemble, solve_weights
from sween.ensemble import radius_weights as module
from sween.ensemble.probabilities import noisy_margins
from sween.ensemble.radius_weights import RadiusObjective, margins_of, maximise_radius
from sween.errors import BadInput
from tests.ensemble.test_solve import SIGMA, _problem
from tests.smoothing.small import Computed


def _probabilities(rows: int, members: int = 3, classes: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.softmax(torch.randn(rows, members, classes, generator=generator), dim=2)


def test_the_objective_is_the_mean_radius_of_the_ensemble_s_votes() -> None:
    """Against a loop over images, copies and classes; whatever the size of the parts."""
    images, samples = 7, 30
    probabilities = _probabilities(images * samples)
    labels = (torch.arange(images) % 4).repeat_interleave(samples)
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    radii = []
    for image in range(images):
        correct = 0
        for copy in range(image * samples, (image + 1) * samples):
            scores = sum(w * p.double() for w, p in zip(weights, probabilities[copy], strict=True))
            assert isinstance(scores, torch.Tensor)
            correct += int(scores.argmax()) == int(labels[copy])
        radii.append(float(radius_cohen(correct, samples, alpha=0.001, sigma=SIGMA)))
    margins = margins_of(probabilities, labels)
    objective = RadiusObjective(margins, samples=samples, sigma=SIGMA)
    assert objective(weights) == pytest.approx(np.mean(radii))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", 100)
        assert objective(weights) == pytest.approx(np.mean(radii))
        parts = objective.ascent(weights)
    torch.testing.assert_close(parts, objective.ascent(weights), rtol=1e-5, atol=1e-9)


def test_the_gradient_is_that_of_the_smooth_surrogate() -> None:
    """Differences of the surrogate, written out, along each coordinate."""
    images, samples = 20, 40
    generator = torch.Generator().manual_seed(1)
    labels = (torch.arange(images) % 4).repeat_interleave(samples)
    scores = torch.randn(images * samples, 3, 4, generator=generator, dtype=torch.float64)
    scores[torch.arange(len(labels)), :, labels] += 3.0
    margins = margins_of(torch.softmax(scores, dim=2), labels)
    objective = RadiusObjective(margins, samples=samples, sigma=SIGMA)
    table = radius_cohen(np.arange(samples + 1), samples, alpha=0.001, sigma=SIGMA)

    def surrogate(weights: torch.Tensor) -> float:
        least = torch.einsum("rkm,k->rm", margins, weights).amin(dim=1)
        soft = torch.sigmoid(least / module.TEMPERATURE).view(images, samples).sum(dim=1)
        return float(np.interp(soft.numpy(), np.arange(samples + 1), table).mean())

    weights = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    ascent = objective.ascent(weights)
    assert ascent.abs().max() > 0.01
    for k in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[k] = 1e-6
        slope = (surrogate(weights + step) - surrogate(weights - step)) / 2e-6
        assert slope == pytest.approx(float(ascent[k]), rel=1e-3, abs=1e-6)


def _unsure_and_sure() -> tuple[WeightedEnsemble, torch.Tensor, torch.Tensor]:
    """Unsure members with a blind spot each, and one that answers by the brightest pixel.

    No answer is better than its, but it is as sure of its errors, which cross-entropy punishes.
    """
    ensemble, images, labels = _problem(60)
    sure = Computed(lambda x: 40 * x.flatten(1))
    return WeightedEnsemble([*ensemble.members, sure]), images, labels


def test_acr_finds_weights_with_a_larger_radius_than_cross_entropy_does() -> None:
    ensemble, images, labels = _unsure_and_sure()
    margins, _ = noisy_margins(ensemble, images, labels, sigma=SIGMA, draws=300, seed=99)
    fresh = RadiusObjective(margins, samples=300, sigma=SIGMA)
    radii = {}
    for method in ("sgd", "uniform", "acr"):
        solution = solve_weights(
            ensemble, images, labels, sigma=SIGMA, method=method, samples=200, seed=1
        )
        radii[method] = fresh(torch.tensor(solution.weights, dtype=torch.float64))
    assert radii["acr"] > radii["sgd"] + 0.005
    assert radii["acr"] > radii["uniform"] + 0.005
    assert sum(solution.weights) == pytest.approx(1)
    assert solution.loss == pytest.approx(-radii["acr"], abs=0.05)
    assert solution.gap == pytest.approx(
        float(radius_cohen(200, 200, alpha=0.001, sigma=SIGMA)) + solution.loss
    )


def test_so_few_votes_that_none_certify_are_refused() -> None:
    """All weights would have radius 0, and the first ones would pass for the best."""
    ensemble, images, labels = _unsure_and_sure()
    options = {"sigma": SIGMA, "method": "acr"}
    with pytest.raises(BadInput, match=r"^samples: expected enough votes .*at least 10.*got 9; "):
        solve_weights(ensemble, images, labels, samples=9, **options)  # type: ignore[arg-type]
    found = solve_weights(ensemble, images, labels, samples=10, **options)  # type: ignore[arg-type]
    assert found.loss < 0


@pytest.mark.parametrize("seed", range(6))
def test_the_result_is_never_below_a_start(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(10 * 25, 3, 4, generator=generator)
    labels = torch.randint(0, 4, (10,), generator=generator).repeat_interleave(25)
    scores[torch.arange(250), :, labels] += 2.5
    margins = margins_of(torch.softmax(scores, dim=2), labels)
    objective = RadiusObjective(margins, samples=25, sigma=SIGMA)
    drawn = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    starts = [*(drawn / drawn.sum(dim=1, keepdim=True)), torch.tensor([0.0, 0.0, 1.0]).double()]
    found = maximise_radius(objective, starts)
    assert found.radius == objective(found.weights)
    assert all(found.radius >= objective(start) for start in starts)
    assert float(found.weights.sum()) == pytest.approx(1)
    assert found.weights.min() >= 0
    again = maximise_radius(objective, starts)
    assert torch.equal(found.weights, again.weights)
