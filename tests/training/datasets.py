"""Data sets for the tests of training: small, and with a test split that nobody may touch."""

import dataclasses
import functools
from typing import Any, NoReturn, cast

import torch

from sween.data import Dataset, Split, load_dataset
from sween.data.dataset import StoredPixels


class Untouchable:
    """Stands where the test split stands."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"training asked for {name} of the test split")

    def __len__(self) -> NoReturn:
        raise AssertionError("training asked for the size of the test split")


UNTOUCHABLE = cast(Split, Untouchable())


@functools.cache
def digits() -> Dataset:
    return dataclasses.replace(load_dataset("digits"), test=UNTOUCHABLE)


def few_digits(count: int = 60) -> Dataset:
    """The first digits alone, for runs whose quality does not matter."""
    whole = digits()

    def first(split: Split, size: int) -> Split:
        positions = list(range(size))
        return dataclasses.replace(
            split,
            pixels=StoredPixels(split.pixels.load(positions)),
            labels=split.labels[positions],
        )

    return dataclasses.replace(
        whole, train=first(whole.train, count), weights=first(whole.weights, 20)
    )


def photos(count: int = 10, **changes: Any) -> Dataset:
    """Random colour images with crop-flip augmentation, as a folder of photos has."""
    generator = torch.Generator().manual_seed(0)

    def split(name: str, size: int) -> Split:
        pixels = torch.randint(0, 256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return Split(name, StoredPixels(pixels), torch.arange(size) % 2)

    dataset = Dataset(
        name="image_folder",
        class_names=("cat", "dog"),
        image_shape=(3, 32, 32),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        augmentation="crop-flip",
        train=split("train", count),
        weights=split("weights", 4),
        test=UNTOUCHABLE,
    )
    return dataclasses.replace(dataset, **changes)
