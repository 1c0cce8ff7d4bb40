"""`sween certify`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.engines import EngineName, RayAddress, WorkerCount, pool_of
from sween.cli.options import (
    EXIT_HELP,
    Alpha,
    BatchSize,
    Bound,
    Compile,
    Convert,
    DataRoot,
    Device,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    NoiseOption,
    Precision,
    Quiet,
    Seed,
    SkipUnreadable,
    Source,
    TrustedArch,
    TrustedDataset,
    choose_devices,
    choose_images,
    dataset_of,
)
from sween.ensemble import load_weightings
from sween.ensemble.early_exit import read_exit
from sween.report.summary import summarise
from sween.runs.certification import rows_written
from sween.sampling import CertifySettings, sampling_names
from sween.sampling.settings import ALPHA, N
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.zoo import load


def run(
    source: Source,
    out: Annotated[Path, typer.Option(help="folder for the certificates")],
    indices: Annotated[str | None, typer.Option(help="test images, e.g. 888:1888")] = None,
    every: Annotated[int | None, typer.Option(help="every k-th test image")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all test images")] = False,
    n0: Annotated[
        int | None,
        typer.Option(help="votes that select the class [100; with tolerance or budget 1000]"),
    ] = None,
    n: Annotated[int, typer.Option(help="votes that bound its probability")] = N,
    alpha: Alpha = ALPHA,
    exit_names: Annotated[
        list[str] | None,
        typer.Option(
            "--exit",
            help=f"{EXIT_HELP}; repeat to certify several in the same pass",
        ),
    ] = None,
    exit_threshold: ExitThreshold = 0.999,
    exit_alpha: ExitAlpha = 0.05,
    bound: Bound = "cohen",
    sampling: Annotated[str, typer.Option(help=f"one of {', '.join(sampling_names())}")] = "fixed",
    votes: Annotated[
        str, typer.Option(help="hard, or soft: certify the mean probability instead")
    ] = "hard",
    radius: Annotated[
        list[float] | None,
        typer.Option(help="with --sampling decide: l2 radius to certify or not; may be repeated"),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="with --sampling tolerance: share of the radius that may be lost"),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="with --sampling budget: noisy images in total, pilots included"),
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", help="also certify each member, in the same pass")
    ] = False,
    weighting: Annotated[
        list[Path] | None,
        typer.Option(help="other ensemble folder of the same members, certified in the same pass"),
    ] = None,
    trusted: TrustedDataset = None,
    data_root: DataRoot = None,
    convert: Convert = False,
    skip_unreadable: SkipUnreadable = False,
    arch: TrustedArch = None,
    batch_size: BatchSize = None,
    forward_rows: ForwardRows = None,
    precision: Precision = "auto",
    compile: Compile = None,
    noise: NoiseOption = "float32",
    seed: Seed = 0,
    engine: EngineName = "local",
    workers: WorkerCount = None,
    ray_address: RayAddress = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Certify test images and print their certified accuracy.

    An interrupted run resumes.
    """
    settings = CertifySettings(
        n0=n0,  # type: ignore[arg-type]  # None is the strategy's default
        n=n,
        alpha=alpha,
        bound=bound,
        sampling=sampling,
        seed=seed,
        radii=tuple(radius or ()),
        tolerance=tolerance,
        budget=budget,
        votes=votes,
    )
    policy, *others = (
        read_exit(name, threshold=exit_threshold, alpha=exit_alpha)
        for name in exit_names or ["none"]
    )
    loaded = load(source, archs=arch or ())
    dataset = dataset_of(loaded, data_root, trusted=trusted, convert=convert, test_only=True)
    positions, skipped = choose_images(
        dataset,
        indices=indices,
        every=every,
        everything=everything,
        skip_unreadable=skip_unreadable,
        quiet=quiet,
    )
    # Workers of a pool have devices of their own.
    devices = choose_devices(device if engine == "local" else "cpu")
    several = members and len(loaded.member_names) > 1  # a single member is the ensemble
    smoothed = SmoothedClassifier(
        loaded.to(devices[0]),
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        exit=policy,
        other_exits=others,
        member_names=loaded.member_names if several else None,
        weightings=load_weightings(loaded, weighting or (), archs=arch or ()),
        precision=precision,
        compile=compile,
        noise=noise,
        levels=dataset.test.white,
        batch_size=batch_size,
        forward_rows=forward_rows,
    )
    before = rows_written(out)
    with pool_of(engine, device=device, workers=workers, ray_address=ray_address) as pool:
        run = certify_dataset(
            smoothed,
            dataset,
            out=out,
            settings=settings,
            indices=positions,
            devices=devices if len(devices) > 1 else None,
            pool=pool,
            skipped=skipped,
            quiet=quiet,
        )
    typer.echo(summarise(run.rows, decided=settings.radii), nl=False)
    written = len(run.rows) - before
    typer.echo(f"{written} certificates written, {len(positions)} images in {out}")
