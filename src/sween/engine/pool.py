"""The contract of a pool: workers that each hold a prepared engine and count tasks.

The dispatcher (`dispatcher.py`) sends tasks and learns what became of them from events. Ray, the
threads of a test and a simulated cluster are pools alike.
"""

import dataclasses
import platform
import warnings
from collections.abc import Callable
from typing import Protocol, Self, runtime_checkable

import torch

from sween.engine.engine import ForwardPassShrunk, VoteEngine
from sween.engine.votes import VoteRequest, Votes
from sween.version import __version__


@dataclasses.dataclass(frozen=True)
class Task:
    """Votes for one worker to count.

    Attributes:
        number: unlike that of any other task.
        request: with images on the host.
        seed: of the noise.
        rows: of every forward pass.
    """

    number: int
    request: VoteRequest
    seed: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Traits:
    """A worker's prepared engine.

    Attributes:
        host: where it runs.
        sween: version.
        torch: version.
        device: its kind.
        precision: arithmetic of the networks.
        rounding: see `VoteEngine.rounding`.
        rows_asked: rows of a forward pass at the start.
        rows: of a forward pass now.
        whole_blocks: see `VoteEngine.whole_blocks`.
        full_blocks: see `VoteEngine.full_blocks`.
        warnings: given while the engine was prepared.
    """

    host: str
    sween: str
    torch: str
    device: str
    precision: str
    rounding: str
    rows_asked: int
    rows: int
    whole_blocks: int
    full_blocks: int
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, engine: VoteEngine, told: tuple[str, ...] = ()) -> Self:
        assert engine.rows_asked is not None  # since it is prepared
        return cls(
            host=platform.node(),
            sween=__version__,
            torch=torch.__version__,
            device=engine.device.type,
            precision=engine.precision,
            rounding=engine.rounding(),
            rows_asked=engine.rows_asked,
            rows=engine.forward_rows,
            whole_blocks=engine.whole_blocks,
            full_blocks=engine.full_blocks,
            warnings=told,
        )


@dataclasses.dataclass(frozen=True)
class Starting:
    """A worker is there and prepares its engine, which may take minutes if it is compiled."""

    worker: int


@dataclasses.dataclass(frozen=True)
class Joined:
    """A worker is ready for tasks."""

    worker: int
    traits: Traits


@dataclasses.dataclass(frozen=True)
class Counted:
    """The votes of a task; or new traits, if the worker had to change the shape of its passes.

    It has counted nothing then: passes of another shape may round differently than elsewhere.
    """

    worker: int
    task: int
    answer: Votes | Traits


@dataclasses.dataclass(frozen=True)
class Lost:
    """A worker died with its tasks."""

    worker: int


@dataclasses.dataclass(frozen=True)
class Failed:
    """What a worker refused, in one line: it would fail anywhere, so the run ends."""

    reason: str


Event = Starting | Joined | Counted | Lost | Failed


@runtime_checkable
class Pool(Protocol):
    """Workers on this machine or others. Events may come from any thread.

    Example:
        See `RayPool`.
    """

    @property
    def size(self) -> int:
        """How many workers were asked for."""
        ...

    @property
    def device(self) -> str:
        """The kind of device that they count on."""
        ...

    def start(
        self, engine: VoteEngine, image: torch.Tensor, report: Callable[[Event], None]
    ) -> None:
        """Give every worker a copy of an engine, not yet prepared, and an image to prepare it."""
        ...

    def submit(self, worker: int, task: Task) -> None:
        """Queue a task at a worker that joined. One that died meanwhile is reported as lost."""
        ...

    def replace(self, worker: int) -> None:
        """Try to start another in place of a lost worker; it joins under another number."""
        ...

    def stop(self) -> None:
        """End all workers."""
        ...


class PoolWorker:
    """What a worker does: prepare its copy of the engine once, then count one task after another.

    Args:
        engine: its own copy.
        image: to prepare it.
        device: on which it counts.
    """

    def __init__(self, engine: VoteEngine, image: torch.Tensor, device: str) -> None:
        self._engine = engine
        engine.model.to(device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine.prepare(image)
        self.traits = Traits.of(engine, tuple(str(warning.message) for warning in caught))

    def count(self, task: Task) -> Votes | Traits:
        """The votes of a task; or new traits, if the shape of the passes changes for it."""
        engine = self._engine
        if task.rows < engine.forward_rows:
            engine.shrink_to(task.rows)
        elif task.rows == engine.forward_rows:
            images = engine.place(task.request.images)
            request = dataclasses.replace(task.request, images=images)
            try:
                (votes,) = engine.count([request], seed=task.seed)
                return votes
            except ForwardPassShrunk:
                pass
        return Traits.of(engine)
