"""Training with Gaussian noise: objectives, recipes and the trainer."""

from sween.training.config import TrainConfig
from sween.training.many import train, train_many
from sween.training.objectives import OBJECTIVES
from sween.training.recipes import make_configs, read_recipe

__all__ = ["OBJECTIVES", "TrainConfig", "make_configs", "read_recipe", "train", "train_many"]
