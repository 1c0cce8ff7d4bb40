"""Data augmentation of clean training images, before the noise."""

from typing import NamedTuple

import torch
from torch.nn import functional


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
