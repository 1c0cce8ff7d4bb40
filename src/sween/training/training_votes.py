"""Votes on noisy copies of the training images, without augmentation."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from sween.data.dataset import Split, check_white, scale_to_unit
from sween.interleave import to_device_async
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.seeding import torch_seed

ROWS = 8_000
"""Noisy images of a forward pass, of CIFAR's size or smaller."""

CIFAR_NUMBERS = 3 * 32 * 32


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
    rows = max(1, ROWS * CIFAR_NUMBERS // max(CIFAR_NUMBERS, math.prod(split.image_shape)))
    size = max(1, rows // copies)
    groups: Sequence[range] = [
        range(start, min(start + size, len(split))) for start in range(0, len(split), size)
    ]
    with evaluating(model):
        for group, pixels in zip(groups, split.pixels.stream(groups), strict=True):
            check_white(pixels, split.white)
            images = scale_to_unit(to_device_async(pixels, device), split.white)
            for first in range(0, copies, rows):  # of one image there may be more than a pass takes
                drawn = min(rows, copies - first)
                shape = (drawn, *images.shape)
                noise = torch.randn(shape, generator=generator, device=device)
                noisy = (images + sigma * noise).flatten(0, 1)
                with torch.autocast(device.type, torch.bfloat16, enabled=noisy.is_cuda):
                    answers = model(noisy).argmax(dim=1)
                ones = nn.functional.one_hot(answers, num_classes).view(drawn, len(group), -1)
                votes[group.start : group.stop] += ones.sum(dim=0)
    return votes
