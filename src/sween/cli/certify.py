"""`sween certify`"""

from pathlib import Path
from typing import Annotated, Any

import typer

from sween.cli.engines import EngineName, RayAddress, WorkerCount, check_engine, pool_of
from sween.cli.options import (
    EXIT_HELP,
    Alpha,
    BatchSize,
    Bound,
    Budget,
    Compile,
    CompileMode,
    Convert,
    DataRoot,
    Device,
    EstimationVotes,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    Indices,
    NoiseOption,
    Precision,
    Quiet,
    RadiusToDecide,
    Sampling,
    Seed,
    SelectionVotes,
    ShardOption,
    SkipUnreadable,
    Source,
    Tolerance,
    TrustedArch,
    TrustedDataset,
    VotesOption,
    choose_compilation,
    choose_devices,
    choose_exits,
    choose_images,
    dataset_of,
    read_shard_option,
)
from sween.cli.slurm import (
    ExecutorName,
    GpusPerJob,
    JobCount,
    Minutes,
    Partition,
    SlurmOption,
    certify_on_slurm,
)
from sween.ensemble import load_weightings
from sween.report.summary import summarise
from sween.runs import CertificationRun
from sween.runs.certification import rows_written
from sween.runs.pilots import awaits_plan
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.zoo import load


def run(
    context: typer.Context,
    source: Source,
    out: Annotated[Path, typer.Option(help="folder for the certificates")],
    indices: Indices = None,
    every: Annotated[int | None, typer.Option(help="every k-th test image")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all test images")] = False,
    n0: SelectionVotes = None,
    n: EstimationVotes = N,
    alpha: Alpha = ALPHA,
    exit_names: Annotated[
        list[str] | None,
        typer.Option(
            "--exit",
            help=f"{EXIT_HELP}; repeat to certify several in the same pass",
        ),
    ] = None,
    exit_threshold: ExitThreshold = None,
    exit_alpha: ExitAlpha = None,
    bound: Bound = "cohen",
    sampling: Sampling = "fixed",
    votes: VotesOption = "hard",
    radius: RadiusToDecide = None,
    tolerance: Tolerance = None,
    budget: Budget = None,
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
    compile_mode: CompileMode = None,
    noise: NoiseOption = "float32",
    seed: Seed = 0,
    shard: ShardOption = None,
    engine: EngineName = "local",
    jobs: JobCount = None,
    partition: Partition = None,
    minutes: Minutes = None,
    gpus_per_job: GpusPerJob = None,
    slurm: SlurmOption = None,
    executor: ExecutorName = None,
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
    part = read_shard_option(shard)
    of_jobs: dict[str, Any] = {
        "jobs": jobs,
        "partition": partition,
        "minutes": minutes,
        "gpus_per_job": gpus_per_job,
        "executor": executor,
    }
    check_engine(engine, **of_jobs, slurm=slurm, workers=workers, ray_address=ray_address)
    policy, *others = choose_exits(exit_names or ["none"], exit_threshold, exit_alpha)
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
    before = rows_written(out)
    if engine == "slurm":
        run = certify_on_slurm(
            context.obj,
            out,
            images=len(positions),
            fingerprint=loaded.fingerprint,
            planned=settings.strategy.planned,
            shard=part,
            slurm=slurm or (),
            quiet=quiet,
            **of_jobs,
        )
        _report(run, before, settings, out)
        return
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
        compile=choose_compilation(compile, compile_mode),
        noise=noise,
        levels=dataset.test.white,
        batch_size=batch_size,
        forward_rows=forward_rows,
    )
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
            shard=part,
            quiet=quiet,
        )
    if awaits_plan(out):
        typer.echo(
            f"shard {part}: pilot votes on {len(run.indices)} images in {out}; once all shards "
            "have theirs, run sween merge, and then this command again"
        )
        return
    _report(run, before, settings, out)


def _report(run: CertificationRun, before: int, settings: CertifySettings, out: Path) -> None:
    """Print the accuracy, and what was written since there were `before` rows."""
    written = f"{len(run.rows) - before} certificates written, {len(run.indices)} images in {out}"
    if run.shard is not None:  # a part's accuracy is not the run's
        typer.echo(f"shard {run.shard}: {written}; next: sween merge")
        return
    typer.echo(summarise(run.rows, decided=settings.radii), nl=False)
    typer.echo(written)
