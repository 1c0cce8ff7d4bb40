"""Test images as PNG, small enough to travel inside a page by the thousand."""

import base64
import io

import numpy as np
import torch
from PIL import Image

LONGEST_SIDE = 64
"""In pixels: larger images are shown reduced. CIFAR's 32 and the digits' 8 stay as they are."""


def to_png(image: torch.Tensor, *, white: int = 255) -> str:
    """An image as base64 of a PNG, without loss unless it is larger than LONGEST_SIDE.

    Args:
        image: uint8 (C, H, W) with C 1 or 3.
        white: the pixel value that is shown white.
    """
    values = image.permute(1, 2, 0).cpu().numpy().astype(np.float64) * 255 / white
    pixels = np.rint(values).astype(np.uint8)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()
