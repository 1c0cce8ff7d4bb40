"""Noise-augmented training of candidates."""

from sween.training.config import TrainConfig
from sween.training.many import train, train_many
from sween.training.objectives import OBJECTIVES

__all__ = ["OBJECTIVES", "TrainConfig", "train", "train_many"]
