"""`sween bench`"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

from sween.bench import (
    BenchResult,
    calibrate_batch_norm,
    faster_arithmetics,
    measure,
    to_table,
)
from sween.cli.completion import complete_from
from sween.cli.options import (
    Compile,
    CompileMode,
    Device,
    Exit,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    NoiseOption,
    Precision,
    TrustedArch,
    choose_compilation,
    choose_device,
    choose_exits,
)
from sween.engine.model_errors import explain_model_errors
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput, UnknownName
from sween.factories import FACTORY_FORM, TIMM_PREFIX, is_factory
from sween.models import ARCHITECTURES, create_model
from sween.run_folder import describe_environment, write_json
from sween.zoo import load
from sween.zoo.entries import model_folders

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
"""Images of custom networks, and of timm's, unless --image-size says otherwise."""

NUM_CLASSES = 10
"""Of architectures that can have any number."""


def run(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="architectures (registered, timm:NAME or package.module:factory), zoo names or "
            "folders [resnet20]",
            autocompletion=complete_from(lambda: [*ARCHITECTURES, *model_folders()]),
        ),
    ] = None,
    n: Annotated[int, typer.Option(help="votes per certificate, for its time")] = 100_000,
    sigma: Annotated[
        float | None, typer.Option(help="noise level, for architectures [0.5]")
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="image height and width in pixels, for architectures [that of a registered one, "
            "224 for timm's, else 32]"
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="duration of each measurement")] = 3.0,
    rounds: Annotated[int, typer.Option(help="measurements of each loop")] = 3,
    exit_name: Exit = "none",
    exit_threshold: ExitThreshold = None,
    exit_alpha: ExitAlpha = None,
    precision: Precision = "auto",
    compile: Compile = None,
    compile_mode: CompileMode = None,
    noise: NoiseOption = "float32",
    forward_rows: ForwardRows = None,
    arch: TrustedArch = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="JSON file for all measurements")] = None,
) -> None:
    """Measure the throughput of this machine.

    Each model votes on noisy images, and so does the loop of the published code, alternately.
    """
    numbers = {"--seconds": seconds, "--rounds": rounds, "--n": n, "--image-size": image_size}
    for name, value in numbers.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(name, expected="a positive number", got=value, fix="leave it out")
    policy = choose_exits([exit_name], exit_threshold, exit_alpha)[0]
    names = models or ["resnet20"]
    if policy.name != "none" and all(map(_is_architecture, names)):
        raise BadInput(
            "--exit",
            expected="an ensemble among the models",
            got=", ".join(names),
            fix="add an ensemble folder or zoo name",
        )
    chosen = choose_device(device)
    results: list[BenchResult] = []
    found = [
        _model(name, sigma, image_size, arch or ()) for name in names
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
                compile=choose_compilation(compile, compile_mode),
                noise=noise,
                forward_rows=forward_rows,
            )
        )
        model.cpu()  # leaves the device to the next
    if out is not None:
        content = [dataclasses.asdict(result) for result in results]
        write_json(out, {"environment": describe_environment(), "results": content})
    typer.echo(to_table(results), nl=False)
    for line in faster_arithmetics(results):
        typer.echo(line)
    if out is not None:
        typer.echo(f"all measurements are in {out}")


def _is_architecture(name: str) -> bool:
    """Whether a name is that of a network without weights, rather than of a trained ensemble."""
    return name in ARCHITECTURES or (is_factory(name) and not Path(name).exists())


def _model(
    name: str, sigma: float | None, size: int | None, archs: Sequence[str]
) -> tuple[nn.Module, tuple[int, int, int], int, float]:
    """The module, its image shape, its classes and its noise level."""
    if _is_architecture(name):
        shape = _image_shape(name, size)
        model = create_model(name, num_classes=NUM_CLASSES, image_shape=shape)
        with explain_model_errors(model, shape):
            classes = _classes(calibrate_batch_norm(model, shape), shape)
        return model, shape, classes, 0.5 if sigma is None else sigma
    if name not in model_folders() and not Path(name).exists() and "/" not in name:
        names = (*ARCHITECTURES, *model_folders())
        raise UnknownName("folder, zoo model or architecture", name, names, unlisted=FACTORY_FORM)
    loaded = load(name, archs=archs)
    own = {"--sigma": (sigma, loaded.sigma), "--image-size": (size, loaded.image_shape[1])}
    for option, (given, known) in own.items():
        if given not in (None, known):
            raise BadInput(option, expected=f"{known}, as in {name}", got=given, fix="leave it out")
    return loaded, loaded.image_shape, loaded.num_classes, loaded.sigma


def _image_shape(name: str, size: int | None) -> tuple[int, int, int]:
    shape = IMAGENET if name.startswith(TIMM_PREFIX) else CIFAR
    if name in ARCHITECTURES:
        shape = ARCHITECTURES.find(name).image_shape
    return shape if size is None else (shape[0], size, size)


def _classes(model: nn.Module, shape: tuple[int, int, int]) -> int:
    """How many classes a network has; a factory need not take their number."""
    with torch.inference_mode():
        output = model(torch.full((2, *shape), 0.5))
    # Anything else than logits is refused when the network is prepared.
    return len(output[0]) if isinstance(output, torch.Tensor) and output.ndim == 2 else NUM_CLASSES
