"""Pixel normalisation, inside the model: noise, sigma and radii stay in units of [0, 1] pixels."""

from collections.abc import Sequence

import torch
from torch import nn


class Normalize(nn.Module):
    """(x - mean) / std per channel, with the constants stored in the checkpoint.

    Example:
        >>> import torch
        >>> from sween.models import Normalize
        >>> network = torch.nn.Sequential(
        ...     Normalize(mean=[0.5], std=[0.25]), torch.nn.Flatten(), torch.nn.Linear(64, 10)
        ... )
        >>> network(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.std
