"""The images that candidates are trained on."""

import torch

from sween.data.dataset import Dataset
from sween.errors import BadInput
from sween.training.config import TrainConfig


def training_images(dataset: Dataset, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The training pixels and labels of a data set on a device."""
    dataset.check_trainable()
    train = dataset.train
    return train.pixels.load_all().to(device), train.labels.to(device)


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
