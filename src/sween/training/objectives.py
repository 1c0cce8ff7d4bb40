"""Training objectives, each a pure function, in the registry that the command line reads."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Objective = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""(model, images, labels, standard normal noise of the images' shape, sigma) -> loss."""


def gaussian(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    noise: torch.Tensor,
    sigma: float,
) -> torch.Tensor:
    """Cross-entropy on one noisy copy of each image (the paper's standard training)."""
    return functional.cross_entropy(model(images + sigma * noise), labels)


OBJECTIVES: dict[str, Objective] = {"gaussian": gaussian}
