"""Small data sets and runs for the tests of training; using the test split is an error."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

from sween.data import Dataset, Split, load_dataset
from sween.data.dataset import StoredPixels
from sween.models import load_checkpoint, read_manifest
from sween.runs import TrainingRun
from sween.training import TrainConfig
from sween.training.trainer import Trainer


class Untouchable:
    """Takes the place of the test split."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"training asked for {name} of the test split")

    def __len__(self) -> NoReturn:
        raise AssertionError("training asked for the size of the test split")


UNTOUCHABLE = cast(Split, Untouchable())


@functools.cache
def digits() -> Dataset:
    return dataclasses.replace(load_dataset("digits"), test=UNTOUCHABLE)


def few_digits(count: int = 60) -> Dataset:
    """The first digits only, for runs whose accuracy does not matter."""
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


def config(**fields: Any) -> TrainConfig:
    """Six short epochs on few digits."""
    defaults: dict[str, Any] = {"dataset": "digits", "arch": "digits-conv", "sigma": 0.5}
    return TrainConfig(**defaults | {"epochs": 6, "batch_size": 16} | fields)


def interrupted(wanted: TrainConfig, dataset: Dataset, out: Path, steps: int = 9) -> None:
    """A run that is stopped after some steps."""
    running = Trainer(wanted, dataset, out, device=torch.device("cpu")).run()
    for _ in range(steps):
        next(running)
    running.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder, arch=read_manifest(folder).arch)[0].state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def measured(folder: Path) -> list[tuple[int, float, float]]:
    """The metrics without the time taken."""
    rows = TrainingRun.read(folder).metrics
    return [(row.epoch, row.loss, row.noisy_accuracy) for row in rows]
