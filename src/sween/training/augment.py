"""Data augmentation of clean training images, before the noise."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch.nn import functional

from sween.seeding import numpy_generator

SCALE = (0.08, 1.0)
"""Share of a photo's area that a random resized crop keeps."""

RATIO = (3 / 4, 4 / 3)
"""Of width to height of a random resized crop."""

_ATTEMPTS = 10


class CropFlips(NamedTuple):
    """Random augmentation of N images: shifts (2, N) down and right, and flips (N,)."""

    shifts: torch.Tensor
    flips: torch.Tensor


def draw_crop_flips(
    count: int, *, padding: int, generator: torch.Generator, device: torch.device
) -> CropFlips:
    """A random crop position for each padded image, and a flip with probability 1/2."""
    shifts = torch.randint(0, 2 * padding + 1, (2, count), generator=generator, device=device)
    flips = torch.rand(count, generator=generator, device=device) < 0.5
    return CropFlips(shifts, flips)


def apply_crop_flips(images: torch.Tensor, drawn: CropFlips, *, padding: int) -> torch.Tensor:
    """Pad images (N, C, H, W) with zeros, crop at the drawn positions, flip left-right."""
    count, _, height, width = images.shape
    device = images.device
    padded = functional.pad(images, (padding,) * 4)
    rows = drawn.shifts[0, :, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(count, width)
    columns = drawn.shifts[1, :, None] + torch.where(drawn.flips[:, None], columns.flip(1), columns)
    picks = torch.arange(count, device=device)
    # Indexing with (N,1,1), (N,H,1), (N,1,W) gathers every crop at once, as (N, H, W, C).
    cropped = padded.permute(0, 2, 3, 1)[picks[:, None, None], rows[:, :, None], columns[:, None]]
    return cropped.permute(0, 3, 1, 2)


@dataclasses.dataclass(frozen=True)
class ResizedCropFlip:
    """A random part of each photo, scaled to the image size and flipped with probability 1/2.

    As torchvision's RandomResizedCrop and RandomHorizontalFlip, but keyed: what an image becomes
    depends on the seed and its position alone, not on who makes it or when.
    """

    height: int
    width: int
    seed: int
    """Of the epoch."""

    def __call__(self, position: int, photo: torch.Tensor) -> torch.Tensor:
        """The crop (C, height, width) of a photo (C, H, W), uint8 or float."""
        top, left, height, width, flip = self.draw(position, photo.shape[1], photo.shape[2])
        part = photo[None, :, top : top + height, left : left + width]
        size = (self.height, self.width)
        scaled = functional.interpolate(part, size, mode="bilinear", antialias=True)[0]
        return scaled.flip(2) if flip else scaled

    def draw(self, position: int, height: int, width: int) -> tuple[int, int, int, int, bool]:
        """Top, left, height and width of the part, and whether it is flipped."""
        random = numpy_generator(self.seed, "resized crops", example=position)
        flip = bool(random.random() < 0.5)
        for _ in range(_ATTEMPTS):
            area = height * width * random.uniform(*SCALE)
            ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
            tall, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < tall <= height and 0 < wide <= width:
                top, left = random.integers((height - tall + 1, width - wide + 1)).tolist()
                return top, left, tall, wide, flip
        # The centre of a very long or narrow photo, as close to the wanted proportions as can be.
        tall, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
        return (height - tall) // 2, (width - wide) // 2, max(tall, 1), max(wide, 1), flip
