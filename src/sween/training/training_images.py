"""The images that a run trains on, and their fingerprints."""

import dataclasses
import hashlib
from typing import Any

import torch

from sween.arguments import check_type
from sween.data.dataset import Dataset, Split, check_white
from sween.errors import BadInput
from sween.training.config import TrainConfig

RESIZED_CROPS = "resized-crop-flip"


def augmented(dataset: Dataset, config: TrainConfig) -> Dataset:
    """The data set with the augmentation that a config asks for."""
    if config.augmentation is None:
        return dataset
    return dataclasses.replace(dataset, augmentation=config.augmentation)


def training_images(
    dataset: Dataset, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The training pixels and labels of a data set on a device; None if they are streamed.

    Images that do not fit in memory are streamed, and so are random resized crops, which are made
    from the photos.
    """
    dataset.check_trainable()
    train = dataset.train
    if dataset.augmentation == RESIZED_CROPS or not train.fits_in_memory:
        return None
    pixels = train.pixels.load_all()
    check_white(pixels, train.white)
    return pixels.to(device), train.labels.to(device)


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """What a run records about its images, keyed by `DATA_KEYS`.

    It covers both splits that training uses: the training images, and the held-out images on which
    accuracy is monitored and the ensemble's weights are solved later.
    """
    train, weights = dataset.train.pixels, dataset.weights.pixels
    crops = dataset.augmentation == RESIZED_CROPS
    contents = train.photo_contents() if crops else train.contents()
    return {
        "image_shape": list(dataset.image_shape),
        "train_data": _fingerprint(dataset, dataset.train, contents),
        "weights_data": _fingerprint(dataset, dataset.weights, weights.contents()),
    }


def _fingerprint(dataset: Dataset, split: Split, contents: str | None) -> str:
    """BLAKE2b over pixels, labels and what the two mean."""
    about = repr((split.pixels.fingerprint(), contents, split.white, dataset.class_names))
    hasher = hashlib.blake2b(about.encode(), digest_size=16)
    hasher.update(split.labels.to(dtype=torch.int64, device="cpu").contiguous().numpy().tobytes())
    return hasher.hexdigest()


def check_dataset(config: TrainConfig, dataset: Dataset) -> None:
    """Refuse a data set that is not the config's, or that has a class without training images."""
    check_type("dataset", dataset, Dataset, fix="pass what sween.load_dataset returns")
    if dataset.name != config.dataset:
        raise BadInput("dataset", expected=config.dataset, got=dataset.name, fix="pass that one")
    dataset.check_trainable()
    missing = sorted(set(range(dataset.num_classes)) - set(dataset.train.labels.tolist()))
    if missing:
        names = ", ".join(dataset.class_names[label] for label in missing)
        raise BadInput(
            f"{dataset.name}: training images",
            expected="at least one per class",
            got=f"none of {names}",
            fix="add images or remove the class",
        )
