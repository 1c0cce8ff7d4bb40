"""`sween predict`"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from sween.cli.options import (
    Alpha,
    Compile,
    CompileMode,
    Convert,
    Device,
    Exit,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    NoiseOption,
    Precision,
    Quiet,
    Source,
    TrustedArch,
    choose_compilation,
    choose_device,
    choose_exits,
)
from sween.data import read_image
from sween.ensemble import LoadedEnsemble
from sween.errors import BadInput
from sween.factories import is_factory
from sween.progress import track
from sween.records import ABSTAIN, Certificate, format_radius
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N
from sween.seeding import fresh_seed
from sween.smoothing import Prediction, SmoothedClassifier
from sween.zoo import load

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Image files read from a folder; a file given by name may have any suffix."""

IMAGES_PER_BATCH = 16


def run(
    source: Source,
    images: Annotated[list[Path], typer.Argument(help="image files, or folders with image files")],
    certify: Annotated[
        bool, typer.Option("--certify", help="print the certified l2 radius as well")
    ] = False,
    n0: Annotated[
        int | None, typer.Option(help="with --certify: votes that select the class [100]")
    ] = None,
    n: Annotated[int | None, typer.Option(help="votes [100; 100000 with --certify]")] = None,
    alpha: Alpha = ALPHA,
    exit_name: Exit = "none",
    exit_threshold: ExitThreshold = None,
    exit_alpha: ExitAlpha = None,
    bound: Annotated[
        str | None, typer.Option(help="with --certify: cohen or two-class [cohen]")
    ] = None,
    votes: Annotated[str | None, typer.Option(help="with --certify: hard or soft [hard]")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="print a JSON array that includes the votes")
    ] = False,
    convert: Convert = False,
    resize: Annotated[
        bool, typer.Option("--resize", help="scale and crop to the members' image size")
    ] = False,
    forward_rows: ForwardRows = None,
    precision: Precision = "auto",
    compile: Compile = None,
    compile_mode: CompileMode = None,
    noise: NoiseOption = "float32",
    arch: TrustedArch = None,
    seed: Annotated[
        int | None,
        typer.Option(help="noise seed; the noise then depends on the pixels alone [random]"),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict the class of each image, or abstain.

    With --certify, also print the certified l2 radius.
    """
    asked = {"n0": n0, "bound": bound, "votes": votes}
    given = {name: value for name, value in asked.items() if value is not None}
    if given and not certify:
        name = next(iter(given))
        raise BadInput(
            f"--{name}: expected to be used with --certify, got no --certify; add --certify, or "
            f"leave --{name} out"
        )
    loaded = load(source, archs=arch or ())
    files = list(_files(images))
    own = fresh_seed() if seed is None else seed
    settings = (
        CertifySettings(
            n=N if n is None else n,
            alpha=alpha,
            seed=own,
            **given,  # type: ignore[arg-type]
        )
        if certify
        else None
    )
    shape = loaded.image_shape
    pixels = [
        read_image(path, image_shape=shape, channels=shape[0], convert=convert, resize=resize)
        for path in files
    ]
    classifier = SmoothedClassifier(
        loaded.to(choose_device(device)),
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        exit=choose_exits([exit_name], exit_threshold, exit_alpha)[0],
        name=loaded.name,
        forward_rows=forward_rows,
        precision=precision,
        compile=choose_compilation(compile, compile_mode),
        noise=noise,
    )
    if noise == "exact" and is_factory(loaded.dataset):
        raise BadInput(
            "--noise exact: expected a data set of sween, whose pixel levels are known, got "
            f"{loaded.dataset}; use SmoothedClassifier with levels=... in Python"
        )
    white = loaded.white if noise == "exact" else 255
    batch = torch.stack(
        [_scaled(image, white, path) for image, path in zip(pixels, files, strict=True)]
    )
    keys = list(range(len(files))) if seed is None else [_content_key(image) for image in batch]
    answers = list[Prediction | Certificate]()
    if settings is not None:
        each = settings.n0 + settings.n
        with track("certify", each * len(files), quiet=quiet, often_short=True) as advance:
            for part in _parts(keys):
                answers += classifier.certify(
                    batch[part],
                    settings=settings,
                    indices=keys[part],
                    on_progress=lambda copies: advance(copies, "votes"),
                )
    else:
        is_short = len(files) <= IMAGES_PER_BATCH
        with track("predict", len(files), quiet=quiet or is_short) as advance:
            for part in _parts(keys):
                answers += classifier.predict(
                    batch[part],
                    n=100 if n is None else n,
                    alpha=alpha,
                    seed=own,
                    indices=keys[part],
                )
                advance(part.stop - part.start, "images")
    _print(files, answers, loaded, json_output)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The given files, and the image files in the given folders."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = [
            Path(folder) / name
            for folder, _, names in os.walk(path, followlinks=True)
            for name in names
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith(".")
        ]
        if not found:
            raise BadInput(
                f"{path}: expected a folder with images ({' '.join(SUFFIXES)}), got no such file "
                "in it; pass the image files themselves"
            )
        yield from sorted(found)


def _content_key(image: torch.Tensor) -> int:
    """A noise key derived from the pixels, so that name and location do not change the answer.

    53 bits, so that every JSON parser reads it exactly.
    """
    content = hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(content, "little") >> 11


def _parts(keys: Sequence[int]) -> Iterator[slice]:
    """Batches of images with distinct keys; identical images have the same key."""
    start = 0
    while start < len(keys):
        stop = start + 1
        most = min(start + IMAGES_PER_BATCH, len(keys))
        while stop < most and keys[stop] not in keys[start:stop]:
            stop += 1
        yield slice(start, stop)
        start = stop


def _print(
    files: Sequence[Path],
    answers: Sequence[Prediction | Certificate],
    loaded: LoadedEnsemble,
    as_json: bool,
) -> None:
    """One line per image, or a JSON array with all details of each."""
    labels = [_label(answer.prediction, loaded.class_names) for answer in answers]
    if as_json:
        records = [
            {
                "file": str(path),
                "answer": None if answer.abstained else label,
                **dataclasses.asdict(answer),
            }
            for path, label, answer in zip(files, labels, answers, strict=True)
        ]
        typer.echo("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]")
        return
    for path, label, answer in zip(files, labels, answers, strict=True):
        line = f"{path}\t{label}"
        if isinstance(answer, Certificate):
            line += f"\tradius {format_radius(answer.radius)}"
        typer.echo(line)


def _scaled(pixels: torch.Tensor, white: int, path: Path) -> torch.Tensor:
    """An image's 8-bit pixels in [0, 1], as multiples of 1/white.

    All images use the same scale: if only files whose pixels all lie on the data set's grid were
    read on that grid, changing one pixel could change the values of all others.
    """
    steps = (pixels.float() * white / 255).round()
    off = pixels[(steps * 255 / white).round() != pixels.float()]
    if len(off):
        raise BadInput(
            f"{path}: expected the {white + 1} grey levels of the data set, for exact noise, got a "
            f"pixel of value {int(off[0])}, which is not one of them; use --noise float32"
        )
    return steps / white


def _label(prediction: int, class_names: tuple[str, ...]) -> str:
    return "abstain" if prediction == ABSTAIN else class_names[prediction]
