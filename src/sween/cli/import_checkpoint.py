"""`sween import`"""

import hashlib
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer

from sween.cli.options import Convert, DataRoot, Device, ImageSize, choose_device
from sween.data import DATASETS, Dataset, load_dataset
from sween.data.dataset import Split, StoredPixels
from sween.errors import BadInput
from sween.factories import is_factory
from sween.locks import FolderLock
from sween.models import Manifest, save_checkpoint
from sween.models.checkpoint import CHECKPOINT
from sween.models.own_weights import own_network
from sween.models.published import NORMALIZATIONS, Plain, published_network
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
    device: Device = "auto",
) -> None:
    """Import a checkpoint of another training script as an ensemble member.

    No code in the file is run: weights are read, from a file of torch.save or safetensors. Prints
    the accuracy on noisy test images: a low value suggests that the architecture, noise level or
    normalisation is wrong.
    """
    if not 0 < sigma < math.inf:
        raise BadInput("sigma", expected="a positive number", got=sigma, fix="try 0.5")
    if images < 1:
        raise BadInput("images", expected="at least 1", got=images, fix="leave it out")
    chosen = choose_device(device)
    data = load_dataset(dataset, data_root, image_size=image_size, convert=convert, test_only=True)
    model, about = _network(checkpoint, arch, data, normalize)
    origin = {
        "file": checkpoint.name,
        "sha256": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
        **{name: value for name, value in about.items() if name in ("epoch", "arch")},
    }
    images = min(images, len(data.test))
    accuracy = _accuracy(model.to(chosen), data, sigma, images)
    manifest = Manifest(
        arch=arch,
        num_classes=data.num_classes,
        image_shape=data.image_shape,
        dataset=data.name,
        class_names=data.class_names,
        sigma=sigma,
        training={"method": "imported", "seed": 0, "origin": origin},
    )
    config = {"kind": "imported", "arch": arch, "dataset": data.name, "sigma": sigma, **origin}
    with FolderLock(out):
        start_run(out, config)
        save_checkpoint(model.cpu(), out / CHECKPOINT, manifest)
    typer.echo(
        f"{checkpoint.name} as {arch} into {out}: correct on {100 * accuracy:.1f}% of {images} "
        f"noisy test images at sigma {sigma:g}"
    )


def _network(
    checkpoint: Path, arch: str, data: Dataset, normalize: str | None
) -> tuple[torch.nn.Module, Mapping[str, Plain]]:
    """The network with its weights, and what else the file says."""
    num_classes, image_shape = data.num_classes, data.image_shape
    if not is_factory(arch):
        model, published = published_network(
            checkpoint, arch, num_classes=num_classes, image_shape=image_shape, normalize=normalize
        )
        return model, published.about
    if normalize is not None:
        raise BadInput(
            "--normalize",
            expected=f"none with {arch}, whose network takes [0, 1] images",
            got=normalize,
            fix="put the normalisation into the network that the factory returns",
        )
    return own_network(checkpoint, arch, num_classes=num_classes, image_shape=image_shape)


def _accuracy(model: torch.nn.Module, data: Dataset, sigma: float, images: int) -> float:
    """On evenly spaced test images, one noisy copy each."""
    test = data.test
    positions = range(0, len(test), max(1, len(test) // images))[:images]
    pixels = StoredPixels(test.pixels.load(positions))
    part = Split(test.name, pixels, test.labels[list(positions)], test.white)
    accuracy = noisy_accuracy(model, part, sigma, seed=0)
    if accuracy < 2 / data.num_classes:
        warnings.warn(
            f"only {100 * accuracy:.1f}% of noisy test images are classified correctly: check "
            "architecture, noise level and normalisation",
            stacklevel=2,
        )
    return accuracy
