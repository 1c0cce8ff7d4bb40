"""The optimizer of a training run."""

from typing import Any

import torch
from torch import nn

from sween.training.config import TrainConfig
from sween.training.muon import Muon, matrices_of


def make_optimizer(
    config: TrainConfig,
    model: nn.Module,
    *,
    rate: torch.Tensor | None,
    images: torch.Tensor | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of a config, for all parameters of a model.

    Args:
        config: of the run.
        model: whose parameters it moves.
        rate: the learning rate on the device, for a step that is captured; None for plain steps,
            whose rate is set in the parameter groups.
        images: a batch for the model, which shows which of its layers is the last one.
    """
    matrices = matrices_of(model, images) if config.optimizer == "muon" else []
    apart = {id(one) for one in matrices}
    decayed: dict[str, Any] = {"params": [], "weight_decay": config.weight_decay}
    spared: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    for parameter in model.parameters():
        if id(parameter) not in apart:
            own = spared if parameter.ndim < 2 and not config.decay_norms else decayed
            own["params"].append(parameter)
    groups = [group for group in (decayed, spared) if group["params"]]
    nesterov = config.nesterov and config.momentum > 0
    if config.optimizer == "muon":
        return Muon(
            matrices,
            groups,
            rate=config.learning_rate if rate is None else rate,
            matrix_rate=config.peak_matrix_rate / config.learning_rate,
            momentum=config.momentum,
            nesterov=nesterov,
            low_precision=rate is not None,
        )
    return torch.optim.SGD(
        groups,
        lr=config.learning_rate if rate is None else rate,
        momentum=config.momentum,
        nesterov=nesterov,
        fused=rate is not None or None,
    )
