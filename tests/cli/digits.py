"""Test digits as the files a user would have."""

from pathlib import Path

import numpy as np
from PIL import Image

from sween.data import load_dataset


def write_digit(path: Path, position: int = 0) -> int:
    """A test digit as an 8 x 8 grayscale image; gives its label."""
    test = load_dataset("digits").test
    pixels = test.images([position])[0, 0].numpy()
    Image.fromarray(np.rint(pixels * 255).astype(np.uint8)).save(path)
    return int(test.labels[position])
