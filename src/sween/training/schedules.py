"""Learning rate schedules, as functions of the fraction of the run that is done."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sween.training.config import TrainConfig

SCHEDULES = ("one-cycle", "cosine", "step", "constant")

_START = 0.1
"""Warm-up starts at this fraction of the full rate."""


def learning_rate(config: "TrainConfig", step: int, steps_per_epoch: int) -> float:
    """The rate of one step, counted from 0 over the whole run.

    one-cycle: warm-up, then linear decay to 0.
    cosine:    warm-up, then cosine decay to 0.
    step:      warm-up, if any; multiplied by 0.1 at each milestone.
    constant:  warm-up, if any, then constant.
    """
    full, warmup = config.learning_rate, config.warmup_share
    progress = step / (config.epochs * steps_per_epoch)
    rising = _START + (1 - _START) * progress / warmup if progress < warmup else 1.0
    if config.schedule in ("step", "constant"):
        epoch = step // steps_per_epoch
        return full * rising * 0.1 ** sum(epoch >= milestone for milestone in config.milestones)
    if progress < warmup:
        return full * rising
    left = (1 - progress) / (1 - warmup)
    if config.schedule == "one-cycle":
        return full * left
    return full * 0.5 * (1 - math.cos(math.pi * left))
