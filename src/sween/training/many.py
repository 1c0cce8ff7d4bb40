"""Training one candidate, or many at once on one device."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from sween.data.dataset import Dataset
from sween.errors import CheckFailed, SweenError
from sween.models import load_checkpoint
from sween.progress import track
from sween.training.config import TrainConfig
from sween.training.trainer import Trainer


def train(
    config: TrainConfig,
    dataset: Dataset,
    out: Path,
    *,
    device: torch.device | None = None,
    quiet: bool = False,
) -> nn.Module:
    """Train one candidate with noise into the run folder `out`; see `Trainer`.

    Returns:
        The trained network, in evaluation mode, on `device`.
    """
    device = device or torch.device("cpu")
    trainer = Trainer(config, dataset, out, device=device)
    with track(f"train {trainer.name}", trainer.steps_left, quiet=quiet) as advance:
        for note in trainer.run():
            advance(1, note)
    return load_checkpoint(out, arch=config.arch)[0].to(device)


def train_many(
    configs: Sequence[TrainConfig],
    dataset: Dataset,
    outs: Sequence[Path],
    *,
    device: torch.device | None = None,
    quiet: bool = False,
) -> None:
    """Train several candidates at once, a step of each in turn.

    On a GPU each has its own stream, and small networks fill it together where one alone would
    leave it idle. One that fails is named and left; the others go on.

    Raises:
        CheckFailed: some failed, once the others are done.
    """
    device = device or torch.device("cpu")
    if len(configs) == 1:
        train(configs[0], dataset, outs[0], device=device, quiet=quiet)
        return
    trainers = [
        Trainer(config, dataset, out, device=device)
        for config, out in zip(configs, outs, strict=True)
    ]
    running = {trainer: trainer.run() for trainer in trainers}
    failures: list[str] = []
    total = sum(trainer.steps_left for trainer in trainers if not trainer.finished)
    with track(f"train {len(trainers)} candidates", total, quiet=quiet) as advance:
        while running:
            for trainer, steps in list(running.items()):
                try:
                    advance(1, next(steps))
                except StopIteration:
                    del running[trainer]
                except (SweenError, OSError, RuntimeError) as error:
                    del running[trainer]
                    failures.append(f"{trainer.out}: {str(error).splitlines()[0]}")
                    sys.stderr.write(f"sween: error: {failures[-1]}\n")
    if failures:
        raise CheckFailed(f"{len(failures)} of {len(trainers)} candidates failed: {failures[0]}")
