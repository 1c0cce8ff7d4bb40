"""`sween predict`"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from sween.cli.options import (
    Alpha,
    Compile,
    Convert,
    Device,
    Exit,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    NoiseOption,
    Precision,
    Seed,
    Source,
    TrustedArch,
    choose_device,
)
from sween.data import read_image
from sween.ensemble import ExitPolicy
from sween.errors import BadInput
from sween.records import ABSTAIN, format_radius
from sween.smoothing import CertifySettings, SmoothedClassifier
from sween.zoo import load


def run(
    source: Source,
    images: Annotated[list[Path], typer.Argument(help="image files")],
    certify: Annotated[bool, typer.Option("--certify", help="the certified radius too")] = False,
    n0: Annotated[
        int | None, typer.Option(help="with --certify: votes that select the class [100]")
    ] = None,
    n: Annotated[int | None, typer.Option(help="votes; 100, or 100000 with --certify")] = None,
    alpha: Alpha = 0.001,
    exit_name: Exit = "none",
    exit_threshold: ExitThreshold = 0.999,
    exit_alpha: ExitAlpha = 0.05,
    bound: Annotated[
        str | None, typer.Option(help="with --certify: cohen or two-class [cohen]")
    ] = None,
    votes: Annotated[str | None, typer.Option(help="with --certify: hard or soft [hard]")] = None,
    convert: Convert = False,
    resize: Annotated[
        bool, typer.Option("--resize", help="scale and crop to the members' image size")
    ] = False,
    forward_rows: ForwardRows = None,
    precision: Precision = "auto",
    compile: Compile = None,
    noise: NoiseOption = "float32",
    arch: TrustedArch = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """The label of each image, or an abstention; with --certify the radius as well."""
    asked = {"n0": n0, "bound": bound, "votes": votes}
    given = {name: value for name, value in asked.items() if value is not None}
    if given and not certify:
        name = next(iter(given))
        raise BadInput(
            f"--{name}",
            expected="--certify with it",
            got="none",
            fix="add --certify, or leave it out",
        )
    loaded = load(source, archs=arch or ())
    shape = loaded.image_shape
    pixels = torch.stack(
        [
            read_image(path, image_shape=shape, channels=shape[0], convert=convert, resize=resize)
            for path in images
        ]
    )
    classifier = SmoothedClassifier(
        loaded.to(choose_device(device)),
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        exit=ExitPolicy(exit_name, exit_threshold, exit_alpha),
        name=loaded.name,
        forward_rows=forward_rows,
        precision=precision,
        compile=compile,
        noise=noise,
    )
    batch = torch.stack([_scaled(image, loaded.white) for image in pixels])
    if certify:
        settings = CertifySettings(
            n=100_000 if n is None else n,
            alpha=alpha,
            seed=seed,
            **given,  # type: ignore[arg-type]
        )
        certificates = classifier.certify_batch(batch, settings)
        for path, certificate in zip(images, certificates, strict=True):
            label = _label(certificate.prediction, loaded.class_names)
            typer.echo(f"{path}\t{label}\tradius {format_radius(certificate.radius)}")
        return
    for path, answer in zip(
        images,
        classifier.predict_batch(batch, n=100 if n is None else n, alpha=alpha, seed=seed),
        strict=True,
    ):
        typer.echo(f"{path}\t{_label(answer.prediction, loaded.class_names)}")


def _scaled(pixels: torch.Tensor, white: int) -> torch.Tensor:
    """An image's 8-bit pixels in [0, 1]; on the data set's grid where that is what a file holds."""
    exact, steps = pixels.float() / 255, (pixels.float() * white / 255).round()
    stored = torch.equal((steps * 255 / white).round(), pixels.float())
    return steps / white if stored else exact


def _label(prediction: int, class_names: tuple[str, ...]) -> str:
    return "abstain" if prediction == ABSTAIN else class_names[prediction]
