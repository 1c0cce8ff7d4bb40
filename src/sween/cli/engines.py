"""`--engine`: who counts the votes."""

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from sween.engine import Pool
from sween.errors import BadInput, UnknownName

WorkerCount = Annotated[
    int | None, typer.Option(help="with --engine ray: number of workers [one per CPU or GPU]")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="with --engine ray: host:port of a cluster, or auto [a local Ray of its own]"
    ),
]


def _local(device: str) -> AbstractContextManager[Pool | None]:
    return contextlib.nullcontext()


def _ray(
    device: str, workers: int | None = None, ray_address: str | None = None
) -> AbstractContextManager[Pool]:
    from sween.cluster import RayPool  # only when asked for

    return RayPool(workers, address=ray_address, device=device)


_ENGINES: Mapping[str, tuple[Callable[..., AbstractContextManager[Pool | None]], set[str]]] = {
    "local": (_local, set()),
    "ray": (_ray, {"workers", "ray_address"}),
}
"""For each name, what makes its pool, and the options that it takes besides --device."""

EngineName = Annotated[
    str, typer.Option("--engine", help=f"who counts the votes: {' or '.join(_ENGINES)}")
]


def pool_of(name: str, *, device: str, **options: Any) -> AbstractContextManager[Pool | None]:
    """The workers of an engine; None if this process counts.

    Args:
        name: of `--engine`.
        device: of `--device`.
        options: of all engines; None if not given.
    """
    if name not in _ENGINES:
        raise UnknownName("engine", name, _ENGINES)
    make, known = _ENGINES[name]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - known:
        owner = next(other for other, (_, own) in _ENGINES.items() if option in own)
        raise BadInput(
            f"`{option}`", expected=f"`engine={owner}`", got=f"engine {name}", fix="pass both"
        )
    return make(device, **given)
