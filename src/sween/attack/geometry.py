"""l2 norms, and projection onto l2 balls within [0, 1]."""

import torch

MOST_SHRINKS = 60
"""Rounding to float32 may leave a point outside the ball; each attempt shrinks a little more."""


def norms(changes: torch.Tensor) -> torch.Tensor:
    """l2 norms (B,) of perturbations (B, ...), in float64."""
    lengths: torch.Tensor = torch.linalg.vector_norm(changes.flatten(1).double(), dim=1)
    return lengths


def distances(images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """l2 distances (B,), in float64."""
    return norms(others.double() - images.double())


def scaled(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Each row of `values` (B, ...) times its factor (B,)."""
    return values * factors.to(values.dtype).view(-1, *(1,) * (values.ndim - 1))


def directions(gradients: torch.Tensor) -> torch.Tensor:
    """Gradients normalised to l2 norm 1; a zero gradient stays 0."""
    return scaled(gradients, 1 / norms(gradients).clamp_min(1e-30))


def inside(images: torch.Tensor, attacked: torch.Tensor, eps: float) -> torch.Tensor:
    """`attacked`, projected into [0, 1] and onto the l2 balls of radius eps around `images`."""
    start, moved = images.double(), attacked.clamp(0, 1)
    for shrink in range(MOST_SHRINKS):
        lengths = distances(images, moved)
        outside = lengths > eps
        if not bool(outside.any()):
            return moved
        factors = torch.where(outside, eps / lengths * (1 - 1e-7 * 2**shrink), 1.0)
        closer = (start + scaled(moved.double() - start, factors)).to(moved.dtype).clamp(0, 1)
        moved = torch.where(outside.view(-1, *(1,) * (images.ndim - 1)), closer, moved)
    return torch.where(
        (distances(images, moved) > eps).view(-1, *(1,) * (images.ndim - 1)), images, moved
    )
