"""Votes on noisy copies of the training images, without augmentation."""

from collections.abc import Sequence

import torch
from torch import nn

from sween.data.dataset import Split, to_unit_range
from sween.interleave import to_device_async
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.seeding import torch_seed

ROWS = 8_000
"""Noisy images of a forward pass."""


@torch.no_grad()
def count_votes(
    model: nn.Module,
    split: Split,
    *,
    sigma: float,
    copies: int,
    num_classes: int,
    seed: int,
    purpose: str,
    epoch: int = 0,
) -> torch.Tensor:
    """How many noisy copies of each image a network takes for each class: (N, M), on its device.

    The noise depends on the seed, the purpose and the epoch.
    """
    device = device_of(model)
    generator = torch.Generator(device).manual_seed(torch_seed(seed, purpose, block=epoch))
    votes = torch.zeros(len(split), num_classes, device=device)
    groups: Sequence[range] = [
        range(start, min(start + max(1, ROWS // copies), len(split)))
        for start in range(0, len(split), max(1, ROWS // copies))
    ]
    with evaluating(model):
        for group, pixels in zip(groups, split.pixels.stream(groups), strict=True):
            images = to_unit_range(to_device_async(pixels, device), split.white)
            shape = (copies, *images.shape)
            noise = torch.randn(shape, generator=generator, device=device)
            noisy = (images + sigma * noise).flatten(0, 1)
            with torch.autocast(device.type, torch.bfloat16, enabled=noisy.is_cuda):
                answers = model(noisy).argmax(dim=1)
            ones = nn.functional.one_hot(answers, num_classes).view(copies, len(group), -1)
            votes[group.start : group.stop] = ones.sum(dim=0)
    return votes
