"""The 1,797 handwritten digits that ship inside scikit-learn: real images, no download."""

import numpy as np
import torch

from sween.data.dataset import Dataset, Split, StoredPixels
from sween.errors import BadInput
from sween.seeding import numpy_generator

TRAIN_SIZE, WEIGHTS_SIZE, TEST_SIZE = 1197, 240, 360
MEAN, STD = 0.3050, 0.3757
"""Of the training split's pixels in [0, 1]; a test recomputes them."""
WHITE = 16


def load_digits() -> Dataset:
    """The digits as 8 x 8 images of one channel, split by one fixed permutation."""
    try:
        from sklearn.datasets import load_digits as load_embedded
    except ImportError as error:
        raise BadInput(
            "the digits need scikit-learn, which is not installed", fix="pip install scikit-learn"
        ) from error

    embedded = load_embedded()
    pixels = torch.from_numpy(embedded.images.astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(embedded.target.astype(np.int64))
    order = _split_order(len(labels))
    train_end, weights_end = TRAIN_SIZE, TRAIN_SIZE + WEIGHTS_SIZE

    def split(name: str, positions: torch.Tensor) -> Split:
        return Split(name, StoredPixels(pixels[positions]), labels[positions], white=WHITE)

    return Dataset(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        image_shape=(1, 8, 8),
        mean=(MEAN,),
        std=(STD,),
        augmentation="none",
        train=split("train", order[:train_end]),
        weights=split("weights", order[train_end:weights_end]),
        test=split("test", order[weights_end : weights_end + TEST_SIZE]),
        crop_padding=0,
    )


def _split_order(size: int) -> torch.Tensor:
    # Raw Philox words, not Generator.permutation: numpy promises the words for ever, and may
    # change how a permutation is made from them, which would move images between splits.
    words = numpy_generator(0, "digits-split").bit_generator.random_raw(size)
    return torch.from_numpy(np.argsort(words, kind="stable"))
