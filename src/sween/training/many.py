"""Train one candidate, or several at once on one device."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.arguments import check_type
from sween.data.dataset import Dataset
from sween.errors import (
    BadInput,
    CheckFailed,
    SweenError,
    describe_error,
    first_line,
    refuse_duplicates,
)
from sween.locks import FolderLock
from sween.models import load_checkpoint
from sween.paths import AnyPath, as_folder, as_paths
from sween.progress import track
from sween.run_folder import describe_environment
from sween.training.config import TrainConfig
from sween.training.distributed import Processes
from sween.training.trainer import Trainer
from sween.training.training_images import (
    RESIZED_CROPS,
    augmented,
    check_dataset,
    describe_images,
    training_images,
)


def train(
    config: TrainConfig,
    dataset: Dataset,
    out: AnyPath,
    *,
    device: torch.device | None = None,
    quiet: bool = False,
) -> nn.Module:
    """Train one candidate with Gaussian noise into the run folder `out`.

    On a CPU the weights depend only on the config, the data and the versions of the environment.
    The test split is never touched.

    Args:
        config: what to train, and how.
        dataset: the images; see `load_dataset`.
        out: run folder; an interrupted run of the same config is resumed.
        device: for the training; the CPU by default.
        quiet: no progress display.

    Returns:
        The trained network, in evaluation mode, on `device`.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits")
        >>> config = sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=1)
        >>> network = sween.train(config, digits, "run", quiet=True)
        >>> network(digits.test.images(range(3))).shape
        torch.Size([3, 10])
    """
    train_many([config], dataset, [out], device=device, quiet=quiet)
    return load_checkpoint(out, arch=config.arch)[0].to(device or torch.device("cpu"))


def train_many(
    configs: Sequence[TrainConfig],
    dataset: Dataset,
    outs: Sequence[AnyPath],
    *,
    device: torch.device | None = None,
    quiet: bool = False,
    processes: Processes | None = None,
) -> list[bool]:
    """Train several candidates at once, taking turns step by step.

    On a GPU each has its own stream: small networks together use a GPU that one alone would leave
    idle. A candidate that fails is reported and dropped; the others continue. With `processes`,
    each candidate is trained by all of them, and a failure ends them all.

    Returns:
        For each, whether it was trained; False if its folder already held the finished run.

    Raises:
        BadInput: an argument is wrong, or a folder belongs to a different run or is in use by
            another process; nothing is trained then.
        CheckFailed: some candidates failed; raised when the others are done.

    Example:
        >>> import sween
        >>> from sween.training import train_many
        >>> configs = [
        ...     sween.TrainConfig(dataset="digits", arch=arch, sigma=0.5, epochs=1)
        ...     for arch in ("digits-mlp", "digits-conv")
        ... ]
        >>> train_many(configs, sween.load_dataset("digits"), ["mlp", "conv"], quiet=True)
        [True, True]
    """
    for config in configs:
        check_type("config", config, TrainConfig, fix="make one")
        check_dataset(config, dataset)
    folders = [as_folder("out", out) for out in as_paths("outs", outs)]
    refuse_duplicates(
        "outs",
        [str(out.resolve()) for out in folders],
        expected="a different folder for each",
        fix="name one for each config",
    )
    device = device or torch.device("cpu")
    follows = processes is not None and not processes.first
    if processes is not None:
        processes.check_same(same_everywhere(configs, device))
    with contextlib.ExitStack() as stack:
        # All of them first: another process may be using one of these folders.
        locks = [None if follows else stack.enter_context(FolderLock(out)) for out in folders]
        return _train_together(
            configs, dataset, folders, locks, device, quiet or follows, processes
        )


def same_everywhere(configs: Sequence[TrainConfig], device: torch.device) -> dict[str, Any]:
    """What all processes of one training must have in common besides their images and configs.

    Each process orthogonalises Muon's momentum by itself: matrix products that round differently
    on another kind of device would let their weights drift apart.
    """
    found: dict[str, Any] = {"device": device.type, "candidates": len(configs)}
    if any(config.optimizer == "muon" for config in configs):
        if device.type == "cuda":
            found["gpu for muon"] = torch.cuda.get_device_name(device)
        else:
            found["processor for muon"] = describe_environment()["processor"]
    return found


def _train_together(
    configs: Sequence[TrainConfig],
    dataset: Dataset,
    outs: Sequence[Path],
    locks: Sequence[FolderLock | None],
    device: torch.device,
    quiet: bool,
    processes: Processes | None,
) -> list[bool]:
    failures: list[str] = []

    def report_failure(out: Path, error: Exception) -> None:
        if len(configs) == 1 or processes is not None:
            raise error  # the other processes may not have failed, and wait
        # A custom network may raise anything, which must not stop the others.
        plain = isinstance(error, SweenError | OSError | RuntimeError)
        failures.append(f"{out}: {first_line(error) if plain else describe_error(error)}")
        sys.stderr.write(f"sween: error: {failures[-1]}\n")

    shared: dict[bool, tuple[Any, dict[str, Any]]] = {}  # resized crops come from other pixels
    trainers: list[Trainer] = []
    for config, out, lock in zip(configs, outs, locks, strict=True):
        wanted = augmented(dataset, config)
        crops = wanted.augmentation == RESIZED_CROPS
        if crops not in shared:
            shared[crops] = training_images(wanted, device), describe_images(wanted)
        images, described = shared[crops]
        try:
            trainer = Trainer(
                config,
                dataset,
                out,
                device=device,
                images=images,
                described=described,
                lock=lock,
                processes=processes,
            )
            if processes is not None:
                processes.check_same(trainer.recorded)
            if processes is None or processes.first:
                trainer.check_folder()
            trainers.append(trainer)
        except BadInput:
            raise  # an invalid request, reported before the others train for hours
        except Exception as error:
            report_failure(out, error)
    total = sum(trainer.steps_left for trainer in trainers)
    name = trainers[0].name if len(trainers) == 1 else f"{len(trainers)} candidates"
    with (
        track(f"train {name}", total, quiet=quiet or not total) as advance,
        contextlib.ExitStack() as stack,
    ):
        running = {
            trainer: stack.enter_context(contextlib.closing(trainer.run())) for trainer in trainers
        }
        while running:
            for trainer, steps in list(running.items()):
                try:
                    advance(1, next(steps))
                except StopIteration:
                    del running[trainer]
                    advance(0, trainer.note)
                except Exception as error:
                    del running[trainer]
                    report_failure(trainer.out, error)
    if failures:
        raise CheckFailed(f"{len(failures)} of {len(configs)} candidates failed: {failures[0]}")
    return [not trainer.already_trained for trainer in trainers]
