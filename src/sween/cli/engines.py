"""`--engine`: who counts the votes, and the options that only some engines have."""

import contextlib
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from sween.cli.completion import complete_from
from sween.engine import Pool
from sween.errors import BadInput, UnknownName

ENGINES = {
    "local": (),
    "ray": ("workers", "ray_address"),
    "slurm": ("jobs", "partition", "minutes", "gpus_per_job", "slurm", "executor"),
}
"""The engines, with the options that each has to itself."""

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help=f"who counts the votes: {', '.join(ENGINES)}",
        autocompletion=complete_from(lambda: ENGINES),
    ),
]
WorkerCount = Annotated[
    int | None, typer.Option(help="with --engine ray: number of workers [one per CPU or GPU]")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="with --engine ray: host:port of a cluster, or auto [a local Ray of its own]"
    ),
]


def check_engine(engine: str, **options: object) -> None:
    """Refuse an unknown engine, and options of another one; those not given are None."""
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    for option, value in options.items():
        if value is not None and option not in ENGINES[engine]:
            owner = next(name for name, own in ENGINES.items() if option in own)
            raise BadInput(
                f"`{option}`", expected=f"`engine={owner}`", got=f"engine {engine}", fix="pass both"
            )


def pool_of(
    engine: str, *, device: str, workers: int | None, ray_address: str | None
) -> AbstractContextManager[Pool | None]:
    """The workers of an engine; None if this process counts."""
    if engine != "ray":
        return contextlib.nullcontext()
    from sween.cluster import RayPool  # only when asked for

    return RayPool(workers, address=ray_address, device=device)
