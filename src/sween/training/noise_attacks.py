"""Attacks on the noise of training: noise of the same size that the network classifies worse.

A fixed number of gradient steps, each row by itself and without a look at any value on the host, so
that a step of training with an attack can be recorded as a CUDA graph. Noise is in units of pixels.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

Predict = Callable[[torch.Tensor], torch.Tensor]
"""From the noise of R noisy images to their logits, (R, C, H, W) to (R, M), differentiable."""

NoiseAttack = Callable[[Predict, torch.Tensor, torch.Tensor, int, float], torch.Tensor]
"""Of `Predict`, the noise, what the attack leads away from, the number of steps and a size."""

_NO_DIVISION_BY_ZERO = 1e-8


def attack_on_sphere(
    predict: Predict, noise: torch.Tensor, labels: torch.Tensor, steps: int, size: float
) -> torch.Tensor:
    """Sun et al. 2025: ascend the cross-entropy among noise of the same l2 norm.

    Each step is `size` long and followed by rescaling to the norm of the noise. An image gets the
    first noise that makes it misclassified, which may be the one it came with, or the last one.

    Args:
        predict: the network, in evaluation mode.
        noise: (R, C, H, W).
        labels: (R,) true classes.
        steps: gradients.
        size: length of a step.
    """
    norms = _norms(noise)
    current = chosen = noise
    misclassified = torch.zeros_like(labels, dtype=torch.bool)
    for _ in range(steps):
        logits, direction = _ascent(
            predict,
            current,
            lambda logits: functional.cross_entropy(logits, labels, reduction="sum"),
        )
        chosen = torch.where(misclassified.view(-1, 1, 1, 1), chosen, current)
        misclassified = misclassified | (logits.argmax(dim=1) != labels)
        current = current + size * direction
        current = current * (norms / (_norms(current) + _NO_DIVISION_BY_ZERO))
    return torch.where(misclassified.view(-1, 1, 1, 1), chosen, current)


def attack_within_ball(
    predict: Predict, noise: torch.Tensor, targets: torch.Tensor, steps: int, size: float
) -> torch.Tensor:
    """Jeong, Kim and Shin 2023 (CAT-RS): ascend KL(target || softmax) in a ball around the noise.

    Each step is 2 * size / steps long and followed by projection onto the ball, and then by a
    shift and rescaling which, as published, bring back the mean and the root mean square of the
    noise up to its small mean.

    Args:
        predict: the network, in evaluation mode.
        noise: (R, C, H, W).
        targets: (R, M) probabilities.
        steps: gradients.
        size: radius of the ball.
    """
    pixels = (1, 2, 3)
    mean, scale = noise.mean(pixels, keepdim=True), _root_mean_square(noise)
    current = noise
    for _ in range(steps):
        _, direction = _ascent(
            predict,
            current,
            lambda logits: functional.kl_div(
                torch.log_softmax(logits, dim=1), targets, reduction="sum"
            ),
        )
        apart = current + 2 * size / steps * direction - noise
        apart = apart * (size / _norms(apart).clamp(min=size))
        current = noise + apart
        current = (current - current.mean(pixels, keepdim=True)) / _root_mean_square(current)
        current = mean + scale * current
    return current


def _ascent(
    predict: Predict, noise: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits, and the direction in which the loss grows fastest, for each row."""
    point = noise.detach().requires_grad_()
    logits = predict(point)
    (gradient,) = torch.autograd.grad(loss(logits), point)
    return logits.detach(), gradient / (_norms(gradient) + _NO_DIVISION_BY_ZERO)


def _norms(rows: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=(1, 2, 3), keepdim=True)
    return norms


def _root_mean_square(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().mean((1, 2, 3), keepdim=True).sqrt()
