"""PGD in an l2 ball against the smoothed classifier (SmoothAdv, Salman et al. 2019)."""

import torch
from torch.nn import functional

from sween.attack.geometry import directions, inside, scaled
from sween.smoothing.smoothed_logits import SmoothedLogits


def margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Margins (B,) of the label over the best other class; negative where misclassified."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
    return own - others


def ascent(
    surrogate: SmoothedLogits, images: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised gradient of the cross-entropy loss, and the margins."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = surrogate(images)
        loss = functional.nll_loss(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images)
    return directions(gradient), margins(logits.detach(), labels)


def pgd(
    surrogate: SmoothedLogits,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    eps: float,
    steps: int = 100,
) -> torch.Tensor:
    """The iterate with the smallest margin in each ball.

    Args:
        surrogate: the differentiable model that is attacked; it averages over noise in every step.
        images: (B, C, H, W) in [0, 1].
        labels: (B,), the true classes.
        eps: l2 radius of the balls.
        steps: gradient steps, of length 2.5 eps / steps.

    Example:
        >>> import sween
        >>> from sween.attack import SmoothedLogits, pgd
        >>> digits = sween.load_dataset("digits").test
        >>> images, labels = digits.images([0, 1]), digits.labels[:2]
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> surrogate = SmoothedLogits(ensemble, sigma=0.5, samples=8, seed=0)
        >>> attacked = pgd(surrogate, images, labels, eps=0.25, steps=5)
        >>> bool(((attacked - images).flatten(1).norm(dim=1) < 0.2501).all())
        True
    """
    current, best = images, images
    least = torch.full((len(images),), torch.inf, device=images.device)
    for step in range(steps + 1):
        direction, margin = ascent(surrogate, current, labels)
        better = margin < least
        best = torch.where(better.view(-1, *(1,) * (images.ndim - 1)), current, best)
        least = torch.minimum(margin, least)
        if step < steps:
            current = inside(images, current + 2.5 * eps / steps * direction, eps)
    return best


def along(images: torch.Tensor, attacked: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Points on the rays from the images through the attacked ones, clipped to [0, 1]."""
    return (images + scaled(attacked - images, factors)).clamp(0, 1)
