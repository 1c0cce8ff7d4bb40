"""`sween quantize`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.options import (
    Convert,
    DataRoot,
    Device,
    Quiet,
    Seed,
    Source,
    TrustedArch,
    TrustedDataset,
    choose_device,
    dataset_of,
)
from sween.ensemble.folder import new_ensemble
from sween.ensemble.quantize import quantize, write_quantized
from sween.zoo import load


def run(
    source: Source,
    out: Annotated[Path, typer.Option(help="ensemble folder to write")],
    images: Annotated[int, typer.Option(help="training images, with one noise draw each")] = 250,
    trusted: TrustedDataset = None,
    data_root: DataRoot = None,
    convert: Convert = False,
    arch: TrustedArch = None,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure the ranges of activations for int8 precision.

    Writes the same ensemble with these ranges in its checkpoints, which makes them part of what is
    certified. Only for CIFAR ResNets.
    """
    with new_ensemble(out) as building:
        loaded = load(source, archs=arch or ())
        dataset = dataset_of(loaded, data_root, trusted=trusted, convert=convert)
        loaded.to(choose_device(device))
        quantize(loaded, dataset, images=images, seed=seed, quiet=quiet)
        write_quantized(loaded, building, images=images, seed=seed)
    typer.echo(f"{out}: certify it with --precision int8")
