"""l2 balls inside the box of images."""

import torch


def norms(changes: torch.Tensor) -> torch.Tensor:
    """l2 norms (B,) of changes (B, ...)."""
    lengths: torch.Tensor = torch.linalg.vector_norm(changes.flatten(1).double(), dim=1)
    return lengths


def scaled(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Each row of `values` (B, ...) times its factor (B,)."""
    return values * factors.to(values.dtype).view(-1, *(1,) * (values.ndim - 1))


def directions(gradients: torch.Tensor) -> torch.Tensor:
    """Gradients at length 1; a vanishing one stays 0."""
    return scaled(gradients, 1 / norms(gradients).clamp_min(1e-30))


def inside(images: torch.Tensor, attacked: torch.Tensor, eps: torch.Tensor | float) -> torch.Tensor:
    """`attacked`, moved into the box [0, 1] and strictly into the l2 balls of radius eps."""
    boxed = attacked.clamp(0, 1)
    lengths = norms(boxed - images)
    # Rounding to float32 may add a few parts in ten million.
    factors = (
        torch.as_tensor(eps, device=images.device) * (1 - 1e-6) / lengths.clamp_min(1e-30)
    ).clamp(max=1)
    return torch.where(
        (factors < 1).view(-1, *(1,) * (images.ndim - 1)),
        images + scaled(boxed - images, factors),
        boxed,
    )
