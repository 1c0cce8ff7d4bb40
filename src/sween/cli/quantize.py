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
from sween.models.byte_weights import round_weights
from sween.zoo import load


def run(
    source: Source,
    out: Annotated[Path, typer.Option(help="ensemble folder to write")],
    images: Annotated[int, typer.Option(help="training images, with one noise draw each")] = 250,
    weights: Annotated[
        bool, typer.Option("--weights", help="also round the weights to 8 bits and store them so")
    ] = False,
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
    certified. Only for CIFAR ResNets. Rounded weights make it another network in every precision,
    in a quarter of the space.
    """
    with new_ensemble(out) as building:
        loaded = load(source, archs=arch or ())
        dataset = dataset_of(loaded, data_root, trusted=trusted, convert=convert)
        loaded.to(choose_device(device))
        if weights:
            round_weights(loaded)
        quantize(loaded, dataset, images=images, seed=seed, quiet=quiet)
        write_quantized(loaded, building, images=images, seed=seed, as_bytes=weights)
    typer.echo(f"{out}: certify it with --precision int8")
