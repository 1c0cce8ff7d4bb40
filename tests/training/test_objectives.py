"""Training objectives against transcriptions of their formulas."""

import math

import pytest
import torch
from torch import nn

from sween.models import create_model
from sween.training.objectives import OBJECTIVES, gaussian


class Records(nn.Module):
    """Hands on its input's mean pixels as logits and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return x.flatten(1)[:, :3]


def draws(count: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images, torch.arange(count) % 5, noise


def slow_gaussian(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    noise: torch.Tensor,
    sigma: float,
) -> torch.Tensor:
    """mean_i log sum_j exp(z_ij - z_i,y_i), one image and one logit at a time."""
    total = torch.zeros((), dtype=images.dtype)
    for image, label, draw in zip(images, labels.tolist(), noise, strict=True):
        logits = model((image + sigma * draw)[None])[0]
        terms = [torch.exp(logits[other] - logits[label]) for other in range(len(logits))]
        total = total + torch.log(torch.stack(terms).sum())
    return total / len(images)


@pytest.mark.parametrize("sigma", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("arch", ["digits-mlp", "digits-conv"])
def test_gaussian_and_its_gradients_match_the_formula(arch: str, sigma: float) -> None:
    # In evaluation mode, where one image at a time means the same as all at once.
    model = create_model(arch, num_classes=5, image_shape=(1, 8, 8), mean=(0.3,), std=(0.4,))
    model = model.double().eval()
    images, labels, noise = draws()
    parameters = list(model.parameters())
    loss = gaussian(model, images, labels, noise, sigma)
    expected = slow_gaussian(model, images, labels, noise, sigma)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    ours = torch.autograd.grad(loss, parameters)
    theirs = torch.autograd.grad(expected, parameters)
    assert any(gradient.abs().max() > 1e-3 for gradient in theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_noise_is_added_in_pixel_units_before_the_model() -> None:
    """sigma means [0,1] pixels: the model, which normalises, gets images + sigma * noise as is."""
    images, labels, noise = draws()
    model = Records()
    gaussian(model, images, labels % 3, noise, 0.5)
    assert len(model.seen) == 1
    assert torch.equal(model.seen[0], images + 0.5 * noise)
    assert model.seen[0].min() < 0, "noisy images are not clipped"
    assert model.seen[0].max() > 1, "noisy images are not clipped"


def test_equal_logits_cost_the_logarithm_of_the_number_of_classes() -> None:
    model = create_model("digits-mlp", num_classes=7, image_shape=(1, 8, 8))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    images, labels, noise = draws()
    loss = gaussian(model, images.float(), labels, noise.float(), 0.5)
    assert loss.item() == pytest.approx(math.log(7), rel=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_one_finite_number_with_gradients(name: str) -> None:
    model = create_model("digits-conv", num_classes=5, image_shape=(1, 8, 8))
    images, labels, noise = draws()
    loss = OBJECTIVES[name](model, images.float(), labels, noise.float(), 0.25)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert OBJECTIVES[name].__doc__
