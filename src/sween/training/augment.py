"""Label-preserving changes to clean training images, before the noise."""

import torch
from torch.nn import functional


def crop_flip(images: torch.Tensor, *, padding: int, generator: torch.Generator) -> torch.Tensor:
    """Pad with zeros, crop back at a random place, flip left-right half of the time.

    Args:
        images: (N, C, H, W).
        padding: pixels added on each side.
        generator: on the images' device.
    """
    count, _, height, width = images.shape
    device = images.device
    padded = functional.pad(images, (padding,) * 4)
    shifts = torch.randint(0, 2 * padding + 1, (2, count), generator=generator, device=device)
    flips = torch.rand(count, generator=generator, device=device) < 0.5
    rows = shifts[0, :, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(count, width)
    columns = shifts[1, :, None] + torch.where(flips[:, None], columns.flip(1), columns)
    picks = torch.arange(count, device=device)
    # Indexing with (N,1,1), (N,H,1), (N,1,W) gathers every crop at once, as (N, H, W, C).
    cropped = padded.permute(0, 2, 3, 1)[picks[:, None, None], rows[:, :, None], columns[:, None]]
    return cropped.permute(0, 3, 1, 2)
