"""`sween import`"""

import hashlib
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sween.cli.options import Convert, DataRoot, Device, ImageSize, choose_device
from sween.data import DATASETS, Dataset, load_dataset
from sween.data.dataset import Split, StoredPixels
from sween.data.registry import DatasetEntry, find_dataset
from sween.errors import BadInput, CheckpointError
from sween.factories import is_factory
from sween.locks import FolderLock
from sween.models import Manifest, save_checkpoint
from sween.models.checkpoint import CHECKPOINT
from sween.models.own_weights import own_network
from sween.models.published import NORMALIZATIONS, Constants, Plain, published_network
from sween.run_folder import start_run
from sween.training.noisy_accuracy import noisy_accuracy


def run(
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint saved by a training script")],
    arch: Annotated[
        str,
        typer.Option(
            help="its architecture, such as resnet110, or your own as package.module:factory, "
            "which is imported"
        ),
    ],
    sigma: Annotated[float, typer.Option(help="noise level it was trained with")],
    out: Annotated[Path, typer.Option(help="run folder to write")],
    normalize: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(NORMALIZATIONS)} or MEAN/STD, such as 0.5,0.5,0.5/0.2,0.2,0.2; "
            "required for a registered architecture if the file does not contain it"
        ),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help=f"one of {', '.join(DATASETS)}, or package.module:factory")
    ] = "cifar10",
    data_root: DataRoot = None,
    image_size: ImageSize = None,
    convert: Convert = False,
    images: Annotated[int, typer.Option(help="noisy test images to check its accuracy on")] = 1000,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="check its accuracy; without it CIFAR-10 networks need no --data-root",
        ),
    ] = True,
    device: Device = "auto",
) -> None:
    """Import a checkpoint of another training script as an ensemble member.

    No code in the file is run: weights are read, from a file of torch.save or safetensors. Prints
    the accuracy on noisy test images: a low value suggests that the architecture, noise level or
    normalisation is wrong. With --no-check that goes unnoticed.
    """
    if not 0 < sigma < math.inf:
        raise BadInput("sigma", expected="a positive number", got=sigma, fix="try 0.5")
    if images < 1:
        raise BadInput("images", expected="at least 1", got=images, fix="leave it out")
    chosen = choose_device(device)
    entry = find_dataset(dataset)
    data: Dataset | DatasetEntry = entry
    asked = data_root is not None or image_size is not None or convert
    if check or asked or entry.image_shape is None:
        data = load_dataset(
            dataset, data_root, image_size=image_size, convert=convert, test_only=True
        )
    assert data.image_shape is not None
    assert data.class_names is not None
    num_classes = len(data.class_names)
    model, about, constants = _network(checkpoint, arch, num_classes, data.image_shape, normalize)
    origin = {
        "file": checkpoint.name,
        "sha256": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
        **{name: value for name, value in about.items() if name in ("epoch", "arch")},
    }
    found = "its accuracy was not checked"
    if check:
        assert isinstance(data, Dataset)
        images = min(images, len(data.test))
        accuracy = _accuracy(model.to(chosen), data, sigma, images)
        found = f"correct on {100 * accuracy:.1f}% of {images} noisy test images at sigma {sigma:g}"
    manifest = Manifest(
        arch=arch,
        num_classes=num_classes,
        image_shape=data.image_shape,
        dataset=dataset,
        class_names=data.class_names,
        sigma=sigma,
        training={"method": "imported", "seed": 0, "origin": origin},
    )
    config: dict[str, Any] = {
        "kind": "imported",
        "arch": arch,
        "dataset": dataset,
        "sigma": sigma,
        **origin,
    }
    if constants is not None:
        config |= {"mean": list(constants[0]), "std": list(constants[1])}
    with FolderLock(out):
        start_run(out, config)
        save_checkpoint(model.cpu(), out / CHECKPOINT, manifest)
    typer.echo(f"{checkpoint.name} as {arch} into {out}: {found}")


def _network(
    checkpoint: Path,
    arch: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
    normalize: str | None,
) -> tuple[torch.nn.Module, Mapping[str, Plain], Constants | None]:
    """The network with its weights, what else the file says, and how images are normalised."""
    if not is_factory(arch):
        model, published = published_network(
            checkpoint, arch, num_classes=num_classes, image_shape=image_shape, normalize=normalize
        )
        if published.assumed is not None:
            typer.echo(f"{checkpoint.name}: {published.assumed}")
        return model, published.about, published.used
    if normalize is not None:
        raise BadInput(
            "--normalize",
            expected=f"none with {arch}, whose network takes [0, 1] images",
            got=normalize,
            fix="put the normalisation into the network that the factory returns",
        )
    found = own_network(checkpoint, arch, num_classes=num_classes, image_shape=image_shape)
    return *found, None


def _accuracy(model: torch.nn.Module, data: Dataset, sigma: float, images: int) -> float:
    """On evenly spaced test images, one noisy copy each."""
    test = data.test
    positions = range(0, len(test), max(1, len(test) // images))[:images]
    pixels = StoredPixels(test.pixels.load(positions))
    part = Split(test.name, pixels, test.labels[list(positions)], test.white)
    accuracy = noisy_accuracy(model, part, sigma, seed=0)
    if math.isnan(accuracy):
        raise CheckpointError(
            "checkpoint", expected="finite outputs", got="NaN", fix="check its weights"
        )
    if accuracy < 2 / data.num_classes:
        warnings.warn(
            f"only {100 * accuracy:.1f}% of noisy test images are classified correctly: check "
            "architecture, noise level and normalisation",
            stacklevel=2,
        )
    return accuracy
