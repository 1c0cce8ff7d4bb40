"""Base classifiers whose smoothed probability and robust radius are known exactly."""

import dataclasses

import numpy as np
import torch
from scipy import optimize, special, stats
from torch import nn

SHAPE = (1, 8, 8)
DIMENSION = 64


class HalfSpace(nn.Module):
    """Class 1 where direction . x > offset; the robust radius is the distance to the plane."""

    direction: torch.Tensor

    def __init__(self, direction: torch.Tensor, offset: float) -> None:
        super().__init__()
        self.register_buffer("direction", direction / direction.norm())
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.flatten(1) @ self.direction - self.offset
        return torch.stack([torch.zeros_like(score), score], dim=1)


class Slab(HalfSpace):
    """Class 1 where |direction . x - offset| < half_width."""

    def __init__(self, direction: torch.Tensor, offset: float, half_width: float) -> None:
        super().__init__(direction, offset)
        self.half_width = half_width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.half_width - (x.flatten(1) @ self.direction - self.offset).abs()
        return torch.stack([torch.zeros_like(score), score], dim=1)


class Ball(nn.Module):
    """Class 1 within `radius` of a centre."""

    centre: torch.Tensor

    def __init__(self, centre: torch.Tensor, radius: float) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.radius = radius

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.radius - (x.flatten(1) - self.centre).norm(dim=1)
        return torch.stack([torch.zeros_like(score), score], dim=1)


def slab_probability(shift: float, half_width: float, sigma: float) -> float:
    """P(|shift + noise| < half_width)."""
    upper, lower = (half_width - shift) / sigma, (-half_width - shift) / sigma
    return float(special.ndtr(upper) - special.ndtr(lower))


def ball_probability(distance: float, radius: float, sigma: float, dimension: int) -> float:
    """P(|x + noise - centre| < radius) for |x - centre| = distance."""
    return float(
        stats.ncx2.cdf((radius / sigma) ** 2, dimension, max((distance / sigma) ** 2, 1e-12))
    )


@dataclasses.dataclass(frozen=True)
class KnownCase:
    """p of class 1 at a point, and how far g answers as it does there."""

    probability: float
    robust_radius: float


def slab_case(shift: float, half_width: float, sigma: float) -> KnownCase:
    """g answers 1 out to the shift at which the probability falls to 1/2."""
    probability = slab_probability(shift, half_width, sigma)
    if slab_probability(0.0, half_width, sigma) <= 0.5:
        return KnownCase(probability, np.inf)  # g answers 0 everywhere
    edge = optimize.brentq(
        lambda s: slab_probability(s, half_width, sigma) - 0.5, 0.0, half_width + 10 * sigma
    )
    return KnownCase(probability, abs(edge - abs(shift)))


def ball_case(distance: float, radius: float, sigma: float, dimension: int) -> KnownCase:
    probability = ball_probability(distance, radius, sigma, dimension)
    if ball_probability(0.0, radius, sigma, dimension) <= 0.5:
        return KnownCase(probability, np.inf)
    edge = optimize.brentq(
        lambda s: ball_probability(s, radius, sigma, dimension) - 0.5, 0.0, radius + 10 * sigma
    )
    return KnownCase(probability, abs(edge - distance))


def most_failures(trials: int, alpha: float) -> int:
    """More failures than this have a probability below one in a million at a true rate alpha."""
    return int(stats.binom.ppf(1 - 1e-6, trials, alpha))
