"""`sween bench`"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

from sween.bench import BenchResult, calibrate_batch_norm, measure, to_table
from sween.cli.options import (
    Compile,
    Device,
    Exit,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    NoiseOption,
    Precision,
    TrustedArch,
    choose_device,
)
from sween.ensemble import WeightedEnsemble
from sween.ensemble.early_exit import read_exit
from sween.errors import BadInput
from sween.models import create_model, list_models
from sween.run_folder import describe_environment, write_json
from sween.zoo import load

CIFAR = (3, 32, 32)


def run(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="architectures, zoo names or folders [resnet20]"),
    ] = None,
    n: Annotated[int, typer.Option(help="votes per certificate, for its time")] = 100_000,
    sigma: Annotated[
        float | None, typer.Option(help="noise level, for architectures [0.5]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="duration of each measurement")] = 3.0,
    rounds: Annotated[int, typer.Option(help="measurements of each loop")] = 3,
    exit_name: Exit = "none",
    exit_threshold: ExitThreshold = 0.999,
    exit_alpha: ExitAlpha = 0.05,
    precision: Precision = "auto",
    compile: Compile = None,
    noise: NoiseOption = "float32",
    forward_rows: ForwardRows = None,
    arch: TrustedArch = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="JSON file for all measurements")] = None,
) -> None:
    """Measure the throughput of this machine.

    Each model votes on noisy images, and so does the loop of the published code, alternately.
    """
    for name, value in (("--seconds", seconds), ("--rounds", rounds), ("--n", n)):
        if not (math.isfinite(value) and value > 0):
            raise BadInput(name, expected="a positive number", got=value, fix="leave it out")
    policy = read_exit(exit_name, threshold=exit_threshold, alpha=exit_alpha)
    names = models or ["resnet20"]
    if policy.name != "none" and all(name in list_models() for name in names):
        raise BadInput(
            "--exit",
            expected="an ensemble among the models",
            got=", ".join(names),
            fix="add an ensemble folder or zoo name",
        )
    chosen = choose_device(device)
    results: list[BenchResult] = []
    found = [
        _model(name, sigma, arch or ()) for name in names
    ]  # bad names fail before any measurement
    for name, (model, shape, classes, level) in zip(names, found, strict=True):
        results.append(
            measure(
                model.to(chosen),
                torch.full(shape, 0.5).mul(255).round() / 255,
                name=name,
                sigma=level,
                num_classes=classes,
                n=n,
                seconds=seconds,
                rounds=rounds,
                exit=policy if isinstance(model, WeightedEnsemble) else "none",
                precision=precision,
                compile=compile,
                noise=noise,
                forward_rows=forward_rows,
            )
        )
    if out is not None:
        content = [dataclasses.asdict(result) for result in results]
        write_json(out, {"environment": describe_environment(), "results": content})
    typer.echo(to_table(results), nl=False)
    if out is not None:
        typer.echo(f"all measurements are in {out}")


def _model(
    name: str, sigma: float | None, archs: Sequence[str]
) -> tuple[nn.Module, tuple[int, int, int], int, float]:
    """The module, its image shape, its classes and its noise level."""
    if name in list_models():
        shape = (1, 8, 8) if name.startswith("digits") else CIFAR
        if name.startswith("imagenet"):
            shape = (3, 224, 224)
        model = create_model(name, num_classes=10, image_shape=shape)
        return calibrate_batch_norm(model, shape), shape, 10, 0.5 if sigma is None else sigma
    loaded = load(name, archs=archs)
    if sigma not in (None, loaded.sigma):
        raise BadInput(
            "--sigma", expected=f"{loaded.sigma}, as in {name}", got=sigma, fix="leave it out"
        )
    return loaded, loaded.image_shape, loaded.num_classes, loaded.sigma
