"""`--engine slurm`: the options of its jobs, and their command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sween.cli import main
from sween.errors import BadInput
from sween.runs import CertificationRun, Shard

JobCount = Annotated[int | None, typer.Option(help="with --engine slurm: number of jobs")]
Partition = Annotated[str | None, typer.Option(help="with --engine slurm: partition to use")]
Minutes = Annotated[
    int | None,
    typer.Option(
        "--time",
        help="with --engine slurm: minutes until a job is requeued, to resume [240]",
    ),
]
GpusPerJob = Annotated[int | None, typer.Option(help="with --engine slurm: GPUs of each job")]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="with --engine slurm: option of sbatch such as account=NAME; may be repeated",
    ),
]
ExecutorName = Annotated[
    str | None,
    typer.Option(
        help="with --engine slurm: slurm, or local to try it with processes of this machine"
    ),
]

_OWN = (
    *("--engine", "--jobs", "--partition", "--time", "--gpus-per-job", "--slurm", "--executor"),
    "--out",  # each shard has its own
)


def certify_on_slurm(
    arguments: Sequence[str],
    out: Path,
    *,
    images: int,
    fingerprint: str,
    planned: bool,
    shard: Shard | None,
    jobs: int | None,
    partition: str | None,
    minutes: int | None,
    gpus_per_job: int | None,
    slurm: Sequence[str],
    executor: str | None,
    quiet: bool,
) -> CertificationRun:
    """Run a command of `sween certify` as an array of jobs; returns the merged run."""
    from sween.cluster.slurm import MINUTES, SlurmOptions, certify_in_jobs  # an extra

    if shard is not None:
        raise BadInput("`shard`", expected="none: each job is a shard", got=shard, fix="drop it")
    if jobs is None:
        raise BadInput("`jobs`", expected="the number of jobs", got="none", fix="try --jobs 16")
    if jobs > images:
        raise BadInput(
            "`jobs`", expected=f"at most {images}, one for each image", got=jobs, fix="lower it"
        )
    options = SlurmOptions(
        jobs=jobs,
        partition=partition,
        minutes=MINUTES if minutes is None else minutes,
        gpus_per_job=gpus_per_job,
        options=dict(map(_key_and_value, slurm)),
        executor=executor or "slurm",
    )
    try:
        merged = certify_in_jobs(
            main,
            _without_own(arguments),
            out,
            options,
            images=images,
            fingerprint=fingerprint,
            planned=planned,
            quiet=quiet,
        )
    except KeyboardInterrupt:
        typer.echo("detached: the jobs go on; the same command attaches again", err=True)
        raise
    assert isinstance(merged.run, CertificationRun)
    return merged.run


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput("`slurm`", expected="KEY=VALUE", got=text, fix="try account=NAME")
    return key, value


def _without_own(arguments: Sequence[str]) -> list[str]:
    """The command of a job: without the options of the array."""
    kept, left = list[str](), (each for each in arguments if each != "--quiet")
    for argument in left:
        if argument in _OWN:
            next(left)  # its value
        elif argument != "--" and argument.partition("=")[0] not in _OWN:  # options will follow
            kept.append(argument)
    return kept
