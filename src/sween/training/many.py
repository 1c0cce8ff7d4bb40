"""Training one candidate, or many at once on one device."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from sween.data.dataset import Dataset
from sween.errors import BadInput, CheckFailed, SweenError
from sween.models import load_checkpoint
from sween.paths import AnyPath, as_paths
from sween.progress import track
from sween.training.config import TrainConfig
from sween.training.images import training_images
from sween.training.trainer import Trainer


def train(
    config: TrainConfig,
    dataset: Dataset,
    out: AnyPath,
    *,
    device: torch.device | None = None,
    quiet: bool = False,
) -> nn.Module:
    """Train one candidate with noise into the run folder `out`; see `Trainer`.

    Returns:
        The trained network, in evaluation mode, on `device`.
    """
    out = Path(out)
    device = device or torch.device("cpu")
    trainer = Trainer(config, dataset, out, device=device)
    with track(f"train {trainer.name}", trainer.steps_left, quiet=quiet) as advance:
        for note in trainer.run():
            advance(1, note)
    return load_checkpoint(out, arch=config.arch)[0].to(device)


def train_many(
    configs: Sequence[TrainConfig],
    dataset: Dataset,
    outs: Sequence[AnyPath],
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
    outs = as_paths("outs", outs)
    device = device or torch.device("cpu")
    if len(configs) == 1:
        train(configs[0], dataset, outs[0], device=device, quiet=quiet)
        return
    failures: list[str] = []

    def left_out(out: Path, error: Exception) -> None:
        # Whatever a caller's own network may raise is its own failure, not the others'.
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        known = isinstance(error, SweenError | OSError | RuntimeError)
        failures.append(f"{out}: {said}" if known else f"{out}: {type(error).__name__}: {said}")
        sys.stderr.write(f"sween: error: {failures[-1]}\n")

    images = training_images(dataset, device)
    trainers: list[Trainer] = []
    for config, out in zip(configs, outs, strict=True):
        try:
            trainers.append(Trainer(config, dataset, out, device=device, images=images))
        except BadInput:
            raise  # what was asked is wrong: better said before the others train for hours
        except Exception as error:
            left_out(out, error)
    running = {trainer: trainer.run() for trainer in trainers}
    total = sum(trainer.steps_left for trainer in trainers if not trainer.finished)
    with track(f"train {len(trainers)} candidates", total, quiet=quiet) as advance:
        while running:
            for trainer, steps in list(running.items()):
                try:
                    advance(1, next(steps))
                except StopIteration:
                    del running[trainer]
                except Exception as error:
                    del running[trainer]
                    left_out(trainer.out, error)
    if failures:
        raise CheckFailed(f"{len(failures)} of {len(configs)} candidates failed: {failures[0]}")
