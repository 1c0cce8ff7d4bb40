"""The images that candidates are trained on."""

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
    """What a run records of its images, under the names of `DATA_KEYS`.

    Both splits that training sees: one trains, accuracy is watched on the other, and the ensemble's
    weights are solved on it afterwards.
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
    """Refuse another data set than the config's, and one with a class that has no images."""
    if dataset.name != config.dataset:
        raise BadInput("dataset", expected=config.dataset, got=dataset.name, fix="pass that one")
    dataset.check_trainable()
    missing = sorted(set(range(dataset.num_classes)) - set(dataset.train.labels.tolist()))
    if missing:
        names = ", ".join(dataset.class_names[label] for label in missing)
        raise BadInput(
            f"{dataset.name}: training images",
            expected="some of every class",
            got=f"none of {names}",
            fix="add images or remove the class",
        )
