"""DDN, decoupled direction and norm (Rony et al. 2019): a minimum-norm attack."""

import math

import torch

from sween.attack.geometry import norms, scaled
from sween.attack.pgd import ascent
from sween.smoothing.smoothed_logits import SmoothedLogits


def ddn(
    surrogate: SmoothedLogits,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    steps: int = 100,
    gamma: float = 0.05,
    start: float = 1.0,
) -> torch.Tensor:
    """The nearest adversarial example for the surrogate found in `steps` steps.

    The norm of the perturbation shrinks while the image is misclassified and grows while it is not;
    its rate of change and the step length follow a cosine schedule. Where no adversarial example is
    found, the last iterate.

    Args:
        surrogate: the differentiable model that is attacked.
        images: (B, C, H, W) in [0, 1].
        labels: (B,), the true classes.
        steps: gradient steps.
        gamma: initial relative change of the norm per step.
        start: initial norm and step length.

    Example:
        >>> import sween
        >>> from sween.attack import SmoothedLogits, ddn
        >>> digits = sween.load_dataset("digits").test
        >>> images, labels = digits.images([0, 1]), digits.labels[:2]
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> surrogate = SmoothedLogits(ensemble, sigma=0.5, samples=8, seed=0)
        >>> attacked = ddn(surrogate, images, labels, steps=20)
        >>> distances = (attacked - images).flatten(1).norm(dim=1)
        >>> distances.shape
        torch.Size([2])
    """
    shape = (-1, *(1,) * (images.ndim - 1))
    change, best = torch.zeros_like(images), torch.zeros_like(images)
    radius = torch.full((len(images),), start, dtype=torch.float64, device=images.device)
    least = torch.full_like(radius, torch.inf)
    for step in range(steps + 1):
        direction, margin = ascent(surrogate, images + change, labels)
        length, away = norms(change), margin < 0
        nearer = away & (length < least)
        best = torch.where(nearer.view(shape), change, best)
        least = torch.where(nearer, length, least)
        if step == steps:
            break
        pace = 0.5 * (1 + math.cos(math.pi * step / steps))
        change = change + (0.01 + 0.99 * pace) * start * direction
        radius = radius * torch.where(
            away, 1 - gamma * (0.1 + 0.9 * pace), 1 + gamma * (0.1 + 0.9 * pace)
        )
        change = scaled(change, radius / norms(change).clamp_min(1e-30))
        change = (images + change).clamp(0, 1) - images
    found = torch.isfinite(least).view(shape)
    return images + torch.where(found, best, change)
