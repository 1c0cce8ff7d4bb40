"""Test images as data URLs, small enough to travel inside a page by the thousand."""

import base64
import io

import numpy as np
import torch
from PIL import Image

LONGEST_SIDE = 64
"""In pixels: larger images are shown reduced. CIFAR's 32 and the digits' 8 stay as they are."""

JPEG_QUALITY = 85


def to_data_url(image: torch.Tensor, *, white: int = 255) -> str:
    """An image as a PNG without loss, or where it is larger than LONGEST_SIDE as a small JPEG.

    Args:
        image: uint8 (C, H, W) with C 1 or 3.
        white: the pixel value that is shown white.
    """
    values = image.permute(1, 2, 0).cpu().numpy().astype(np.float64) * 255 / white
    pixels = np.rint(values).astype(np.uint8)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    stream, kind = io.BytesIO(), "png"
    if max(picture.size) > LONGEST_SIDE:
        kind = "jpeg"  # nothing is exact any more, and a PNG of a photo has four times the size
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    picture.save(stream, format=kind.upper(), optimize=True, quality=JPEG_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
