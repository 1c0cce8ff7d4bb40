"""`sween train`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.options import Convert, DataRoot, Device, ImageSize, Quiet, Seed, choose_device
from sween.data import DATASETS, load_dataset
from sween.models import list_models
from sween.training import OBJECTIVES, TrainConfig, train

_ARCHS = ", ".join(list_models())


def run(
    dataset: Annotated[str, typer.Option(help=f"one of {', '.join(DATASETS)}")],
    arch: Annotated[str, typer.Option(help=f"{_ARCHS}, or your own package.module:factory")],
    sigma: Annotated[float, typer.Option(help="noise level, in units of [0,1] pixels")],
    out: Annotated[Path, typer.Option(help="run folder to write")],
    data_root: DataRoot = None,
    method: Annotated[str, typer.Option(help=f"one of {', '.join(OBJECTIVES)}")] = "gaussian",
    epochs: Annotated[int, typer.Option(help="passes over the training images")] = 100,
    batch_size: Annotated[int, typer.Option(help="images a step")] = 128,
    learning_rate: Annotated[float, typer.Option(help="highest of the schedule")] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="of SGD")] = 5e-4,
    schedule: Annotated[str, typer.Option(help="one-cycle or constant")] = "one-cycle",
    image_size: ImageSize = None,
    convert: Convert = False,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train one candidate with noise into a run folder."""
    config = TrainConfig(
        dataset=dataset,
        arch=arch,
        sigma=sigma,
        method=method,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        schedule=schedule,
        seed=seed,
    )
    images = load_dataset(dataset, data_root, image_size=image_size, convert=convert)
    train(config, images, out, device=choose_device(device), quiet=quiet)
    typer.echo(f"trained {arch} on {dataset} at sigma {sigma} into {out}")
