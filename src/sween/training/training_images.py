"""The images that a run trains on, and their fingerprints."""

import hashlib
from typing import Any

import torch

from sween.data.dataset import Dataset, Split
from sween.errors import BadInput
from sween.training.config import TrainConfig


def training_images(dataset: Dataset, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The training pixels and labels of a data set on a device."""
    dataset.check_trainable()
    train = dataset.train
    return train.pixels.load_all().to(device), train.labels.to(device)


def describe_images(dataset: Dataset) -> dict[str, Any]:
    """What a run records about its images, keyed by `DATA_KEYS`.

    It covers both splits that training uses: the training images, and the held-out images on which
    accuracy is monitored and the ensemble's weights are solved later.
    """
    return {
        "image_shape": list(dataset.image_shape),
        "train_data": _fingerprint(dataset, dataset.train),
        "weights_data": _fingerprint(dataset, dataset.weights),
    }


def _fingerprint(dataset: Dataset, split: Split) -> str:
    """BLAKE2b over pixels, labels and what the two mean."""
    pixels = split.pixels.fingerprint(), split.pixels.contents()
    about = repr((*pixels, split.white, dataset.class_names))
    hasher = hashlib.blake2b(about.encode(), digest_size=16)
    hasher.update(split.labels.to(dtype=torch.int64, device="cpu").contiguous().numpy().tobytes())
    return hasher.hexdigest()


def check_dataset(config: TrainConfig, dataset: Dataset) -> None:
    """Refuse a data set that is not the config's, or that has a class without training images."""
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
