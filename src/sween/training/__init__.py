"""Noise-augmented training of candidates."""

from sween.training.config import TrainConfig
from sween.training.loop import train
from sween.training.objectives import OBJECTIVES

__all__ = ["OBJECTIVES", "TrainConfig", "train"]
