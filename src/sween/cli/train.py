"""`sween train`"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sween.cli.completion import complete_from
from sween.cli.options import (
    Convert,
    DataRoot,
    Device,
    ImageSize,
    Quiet,
    choose_device,
    read_shard_option,
)
from sween.data import DATASETS, load_dataset
from sween.data.dataset import AUGMENTATIONS
from sween.models import list_models
from sween.training import OBJECTIVES, TrainConfig, make_configs, read_recipe, train_many
from sween.training.config import OPTIMIZERS, STORES
from sween.training.recipes import list_recipes, run_folders
from sween.training.schedules import SCHEDULES
from sween.training.torchrun import end_process, start_processes

_ARCHS = ", ".join(list_models())


def _default(name: str) -> Any:
    return TrainConfig.__dataclass_fields__[name].default


def run(
    out: Annotated[
        Path, typer.Option(help="run folder, or its parent if there are several candidates")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help=f"recipe file, or one of {', '.join(list_recipes())}",
            autocompletion=complete_from(list_recipes),
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(DATASETS)}, or your own package.module:factory",
            autocompletion=complete_from(lambda: DATASETS),
        ),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{_ARCHS}, timm:NAME, or your own package.module:factory; may be repeated",
            autocompletion=complete_from(list_models),
        ),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="standard deviation of the noise, for [0,1] pixels")
    ] = None,
    noise_factor: Annotated[
        float | None, typer.Option(help="noise of the training images, in multiples of sigma [1]")
    ] = None,
    data_root: DataRoot = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(OBJECTIVES)} [{_default('method')}]",
            autocompletion=complete_from(lambda: OBJECTIVES),
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help=f"passes over the training images [{_default('epochs')}]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help=f"images per step [{_default('batch_size')}]")
    ] = None,
    copies: Annotated[
        int | None, typer.Option(help="noisy copies of each image [depends on the method]")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(OPTIMIZERS)} [{OPTIMIZERS[0]}]",
            autocompletion=complete_from(lambda: OPTIMIZERS),
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help=f"peak learning rate [{_default('learning_rate')}]")
    ] = None,
    matrix_rate: Annotated[
        float | None, typer.Option(help="of muon: peak rate of filters and matrices [0.02]")
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help=f"of SGD and Muon [{_default('momentum')}]")
    ] = None,
    nesterov: Annotated[bool | None, typer.Option(help="Nesterov momentum [yes]")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help=f"of SGD [{_default('weight_decay')}]")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help=f"{', '.join(SCHEDULES)} [{_default('schedule')}]")
    ] = None,
    milestone: Annotated[
        list[int] | None,
        typer.Option(help="epoch at which --schedule step divides the rate by 10; may be repeated"),
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="fraction of the run in which the learning rate rises")
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(help="label smoothing of the cross-entropy loss [off]")
    ] = None,
    decay_norms: Annotated[
        bool | None, typer.Option(help="apply weight decay to batch norms and biases too [yes]")
    ] = None,
    average: Annotated[
        float | None, typer.Option(help="decay of a moving average of the weights [off]")
    ] = None,
    regulariser: Annotated[
        float | None, typer.Option(help="lambda of all methods but gaussian and acr [as published]")
    ] = None,
    regulariser_from: Annotated[
        int | None, typer.Option(help="epoch from which lambda applies [0, or as published]")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="of what temporal remembers: below 1 for larger radii of fewer images [1]"
        ),
    ] = None,
    radius_gain: Annotated[
        float | None,
        typer.Option(
            help="weight each image's loss by the radius it gains per vote; probabilities of the "
            "true class are capped at this, e.g. 0.97 [off]"
        ),
    ] = None,
    radius_gain_from: Annotated[
        int | None,
        typer.Option(help="epoch from which these weights apply [a quarter of the epochs]"),
    ] = None,
    attack_from: Annotated[
        int | None,
        typer.Option(help="epoch from which the noise is attacked [as published]"),
    ] = None,
    attack_steps: Annotated[
        int | None,
        typer.Option(
            help="steps of the attack on the noise, 0 for none; not of gaussian and macer [as "
            "published: none for consistency and temporal]"
        ),
    ] = None,
    attack_size: Annotated[
        float | None,
        typer.Option(help="length of its steps, or radius of catrs [as published]"),
    ] = None,
    drop_below: Annotated[
        float | None,
        typer.Option(help="drop images of which fewer copies are correct [as published for acr]"),
    ] = None,
    reweigh_from: Annotated[
        int | None,
        typer.Option(help="epoch from which images are dropped and weighed [as published for acr]"),
    ] = None,
    reweigh_every: Annotated[
        int | None,
        typer.Option(help="epochs between new image weights, 0 for equal [acr: 10]"),
    ] = None,
    votes: Annotated[
        int | None,
        typer.Option(help="copies of each image for what acr drops [100], for the teacher [1000]"),
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="of catrs: folder of a trained network, or a zoo model")
    ] = None,
    augmentation: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(AUGMENTATIONS)} [the data set's own]"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help=f"number format of the saved weights: {', '.join(STORES)} [float32]"),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="random seed; may be repeated [0]")] = None,
    image_size: ImageSize = None,
    convert: Convert = False,
    shard: Annotated[
        str | None,
        typer.Option(help="only this part of several candidates, e.g. 3/16; needs no merge"),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train candidates with Gaussian noise.

    Several are trained at the same time. An interrupted run resumes. Under torchrun, all processes
    train together.
    """
    processes = start_processes()
    options = {
        "dataset": dataset,
        "sigma": sigma,
        "noise_factor": noise_factor,
        "method": method,
        "epochs": epochs,
        "batch_size": batch_size,
        "copies": copies,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "matrix_rate": matrix_rate,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "milestones": milestone or None,
        "warmup": warmup,
        "label_smoothing": label_smoothing,
        "decay_norms": decay_norms,
        "average": average,
        "regulariser": regulariser,
        "regulariser_from": regulariser_from,
        "temperature": temperature,
        "radius_gain": radius_gain,
        "radius_gain_from": radius_gain_from,
        "attack_from": attack_from,
        "attack_steps": attack_steps,
        "attack_size": attack_size,
        "drop_below": drop_below,
        "reweigh_from": reweigh_from,
        "reweigh_every": reweigh_every,
        "votes": votes,
        "teacher": teacher,
        "augmentation": augmentation,
        "store": store,
    }
    recipe = read_recipe(config) if config is not None else [{}]
    part = read_shard_option(shard)
    configs = make_configs(recipe, options, archs=arch or (), seeds=seed or ())
    folders = run_folders(configs, out)
    if part is not None:
        configs = part.take(configs, "candidates")
        folders = part.take(folders, "candidates")
    chosen = choose_device(device)
    if processes is not None and chosen.type == "cuda":
        chosen = choose_device(f"cuda:{processes.local_rank}")
        torch.cuda.set_device(chosen)
    images = load_dataset(configs[0].dataset, data_root, image_size=image_size, convert=convert)
    trained = train_many(configs, images, folders, device=chosen, quiet=quiet, processes=processes)
    if processes is None or processes.first:
        for one, folder, new in zip(configs, folders, trained, strict=True):
            what = f"{one.arch} on {one.dataset} at sigma {one.sigma}"
            typer.echo(
                f"trained {what} into {folder}" if new else f"already trained: {what} in {folder}"
            )
    end_process()
