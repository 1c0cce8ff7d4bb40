"""The teacher of `catrs`: a trained network whose smoothed probabilities are the targets."""

import torch

from sween.data.dataset import Dataset
from sween.ensemble import LoadedEnsemble
from sween.errors import BadInput, CheckpointError
from sween.training.config import TrainConfig
from sween.training.objectives import OBJECTIVES
from sween.training.training_votes import count_votes
from sween.zoo import load


def load_teacher(config: TrainConfig, dataset: Dataset) -> LoadedEnsemble | None:
    """The teacher that a config names; None for methods without one.

    Raises:
        BadInput: none is named, or it is not one for this data set.
    """
    if not OBJECTIVES[config.method].taught:
        return None
    if config.teacher is None:
        raise BadInput(
            "teacher",
            expected=f"a trained network for {config.method}",
            got="none",
            fix="pass `teacher`: a Gaussian network, as published at sigma 0.25, or a zoo model",
        )
    teacher = load(config.teacher, archs=(config.arch,))  # the user named that one for this run
    for what, own, wanted in (
        ("data set", teacher.dataset, dataset.name),
        ("classes", teacher.class_names, dataset.class_names),
        ("image shape", teacher.image_shape, dataset.image_shape),
    ):
        if own != wanted:
            raise CheckpointError(
                f"teacher {config.teacher}",
                expected=f"{what} {wanted}",
                got=own,
                fix="pass a network that was trained on the same images",
            )
    return teacher


def smoothed_targets(
    teacher: LoadedEnsemble, config: TrainConfig, dataset: Dataset, device: torch.device
) -> torch.Tensor:
    """The teacher's shares of votes on noisy copies of each training image: (N, M)."""
    votes = count_votes(
        teacher.to(device),
        dataset.train,
        sigma=teacher.sigma,
        copies=config.votes_per_image,
        num_classes=dataset.num_classes,
        seed=config.seed,
        purpose="votes of the teacher",
    )
    return votes / config.votes_per_image
