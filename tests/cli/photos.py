"""A small folder of photos, ordered by class, and a network trained on it."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "emu")
PER_CLASS = 4


def write_photos(root: Path) -> Path:
    """Three classes of 8 x 8 photos, one bright channel each, in the layout of ImageNet."""
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for channel, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for number in range(PER_CLASS):
                pixels = random.integers(0, 100, (8, 8, 3), dtype=np.uint8)
                pixels[:, :, channel] += 150
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    return root


def val_file(root: Path, position: int) -> Path:
    """The file of a test image."""
    return root / "val" / CLASSES[position // PER_CLASS] / f"{position % PER_CLASS}.png"
