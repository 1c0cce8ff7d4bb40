"""Attacks on the noise against slow transcriptions, one noisy image at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.training.noise_attacks import NoiseAttack, attack_on_sphere, attack_within_ball

CLASSES, ROWS = 4, 24


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Flatten(), nn.Linear(18, 16), nn.Tanh(), nn.Linear(16, CLASSES))
        return nn.Sequential(*layers).double()


def draws() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, noise, labels that are right for most of the rows, and target probabilities."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(ROWS, 2, 3, 3, generator=generator, dtype=torch.float64)
    noise = 0.5 * torch.randn(ROWS, 2, 3, 3, generator=generator, dtype=torch.float64)
    labels = network()(images + noise).argmax(dim=1)
    labels[::5] = (labels[::5] + 1) % CLASSES
    targets = torch.rand(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    return images, noise, labels, targets / targets.sum(dim=1, keepdim=True)


def gradient(
    loss: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    point = noise.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(network()((image + point)[None])[0]), point)
    return found / found.square().sum().sqrt().add(1e-8)


def slow_on_sphere(
    image: torch.Tensor, noise: torch.Tensor, label: int, steps: int, size: float
) -> torch.Tensor:
    """Sun et al. 2025: the first misclassified noise, else the one after the last step."""
    current = noise
    for _ in range(steps):
        if int(network()((image + current)[None]).argmax()) != label:
            return current
        step = gradient(lambda logits: -torch.log_softmax(logits, 0)[label], image, current)
        current = current + size * step
        current = current / (current.norm() + 1e-8) * noise.norm()
    return current


def slow_within_ball(
    image: torch.Tensor, noise: torch.Tensor, target: torch.Tensor, steps: int, size: float
) -> torch.Tensor:
    """CAT-RS: projected around the noise, then to its mean and its root mean square."""

    def divergence(logits: torch.Tensor) -> torch.Tensor:
        return (target * (torch.log(target) - torch.log_softmax(logits, 0))).sum()

    current = noise
    for _ in range(steps):
        current = current + size / steps * 2 * gradient(divergence, image, current)
        apart = current - noise
        if apart.norm() > size:
            apart = apart / apart.norm() * size
        current = noise + apart
        current = (current - current.mean()) / (current**2).mean().sqrt()
        current = noise.mean() + current * (noise**2).mean().sqrt()
    return current


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("size", [0.05, 0.4])
def test_attacks_match_their_transcriptions(steps: int, size: float) -> None:
    images, noise, labels, targets = draws()
    model = network()

    def predict(delta: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(images + delta)
        return logits

    sphere = attack_on_sphere(predict, noise, labels, steps, size)
    ball = attack_within_ball(predict, noise, targets, steps, size)
    for row in range(ROWS):
        own = slow_on_sphere(images[row], noise[row], int(labels[row]), steps, size)
        torch.testing.assert_close(sphere[row], own, rtol=1e-9, atol=1e-12)
        own = slow_within_ball(images[row], noise[row], targets[row], steps, size)
        torch.testing.assert_close(ball[row], own, rtol=1e-9, atol=1e-12)
    assert not sphere.requires_grad
    assert not ball.requires_grad
    assert all(one.grad is None for one in model.parameters())


@pytest.mark.parametrize("attack", [attack_on_sphere, attack_within_ball])
def test_an_attack_raises_the_loss_with_noise_of_about_the_same_size(attack: NoiseAttack) -> None:
    images, noise, labels, _ = draws()
    model = network()
    onehot = functional.one_hot(labels, CLASSES).double()
    aim = labels if attack is attack_on_sphere else onehot
    attacked = attack(lambda delta: model(images + delta), noise, aim, 4, 0.5)
    with torch.no_grad():
        before, after = (
            functional.cross_entropy(model(images + delta), labels, reduction="none")
            for delta in (noise, attacked)
        )
    right = model(images + noise).argmax(dim=1) == labels
    assert (after[right] > before[right]).all()
    sizes = [delta.flatten(1).norm(dim=1) for delta in (noise, attacked)]
    tolerance = 1e-6 if attack is attack_on_sphere else 0.2
    torch.testing.assert_close(sizes[1], sizes[0], rtol=tolerance, atol=0)


def test_noise_that_is_misclassified_already_is_left_as_it_is() -> None:
    images, noise, labels, _ = draws()
    model = network()
    attacked = attack_on_sphere(lambda delta: model(images + delta), noise, labels, 3, 0.4)
    wrong = model(images + noise).argmax(dim=1) != labels
    assert 0 < wrong.sum() < ROWS
    assert torch.equal(attacked[wrong], noise[wrong])
    assert all((attacked[row] != noise[row]).any() for row in (~wrong).nonzero())
