"""Engines whose votes are counted by the workers of a pool."""

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator

import torch

from sween.engine.dispatcher import Dispatcher, Pending
from sween.engine.engine import ForwardPassShrunk, VoteEngine
from sween.engine.pool import Pool
from sween.engine.votes import VoteRequest, Votes
from sween.errors import BadInput
from sween.seeding import NOISE_BLOCK

ENGINES_PER_WORKER, PASSES_PER_GROUP = 4, 4
"""Groups of images in progress per worker, and forward passes that the first votes on one fill.

The looks of `decide` come one after another: the more images are in progress, the more of the hard
ones are still there at the end to keep all workers busy together."""

SECONDS_BETWEEN_CHECKS = 0.5
"""How soon an engine that waits for votes notices that there will be none."""


class PooledEngine(VoteEngine):
    """A `VoteEngine` that leaves the counting to a pool; images stay on the host.

    Workers have their own copies of the model, so that the caller's may change meanwhile.
    """

    def __init__(self, engine: VoteEngine, dispatcher: Dispatcher, device: str) -> None:
        super().__init__(
            engine.model,
            engine._voters,
            sigma=engine.sigma,
            num_classes=engine.num_classes,
            noise=engine._noise_kind,
        )
        self._dispatcher, self._rows = dispatcher, 0
        self.device = torch.device(device)

    @property
    def precision(self) -> str:
        return self._dispatcher.traits.precision

    @property
    def forward_rows(self) -> int:
        return self._rows

    @property
    def compiled(self) -> bool:
        """False, whatever the workers do: tasks fill their batches from several requests."""
        return False

    @property
    def shared(self) -> bool:
        return False

    @property
    def is_current(self) -> bool:
        return True

    @property
    def batch_blocks(self) -> int:
        """Blocks of one group of images; tasks are cut from those of several groups."""
        return PASSES_PER_GROUP * self._dispatcher.traits.full_blocks

    @property
    def status(self) -> str:
        workers = self._dispatcher.workers
        return f"{workers} worker{'s' * (workers != 1)}"

    def follow_device(self) -> torch.device:
        return self.device

    def prepare(self, image: torch.Tensor) -> None:
        """Start the workers, which prepare their engines; the first of several engines does it."""
        self._dispatcher.start(image)
        self._rows, self.rows_asked = self._dispatcher.rows, self._dispatcher.traits.rows_asked

    def place(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def count(
        self,
        requests: Iterable[VoteRequest],
        *,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> Generator[Votes, None, None]:
        """See `VoteEngine.count`; later requests are sent ahead while the workers need more."""
        updates: queue.SimpleQueue[int] = queue.SimpleQueue()
        coming, waiting = iter(requests), deque[Pending]()
        try:
            while True:
                self._refuse_to_wait_in_vain()
                while not waiting or self._dispatcher.hungry:
                    request = next(coming, None)
                    if request is None:
                        break
                    waiting.append(self._submit(request, seed, updates))
                if not waiting:
                    return
                if (votes := waiting[0].votes) is not None:
                    waiting.popleft()
                    yield votes
                    continue
                draws = 0
                with contextlib.suppress(queue.Empty):
                    draws = updates.get(timeout=SECONDS_BETWEEN_CHECKS)
                if on_progress is not None:  # also without draws: it may stop this thread
                    on_progress(draws)
        finally:
            for pending in waiting:
                pending.closed = True

    def _submit(
        self, request: VoteRequest, seed: int, updates: "queue.SimpleQueue[int]"
    ) -> Pending:
        return self._dispatcher.submit(request, seed=seed, rows=self._rows, updates=updates)

    def _refuse_to_wait_in_vain(self) -> None:
        if self._dispatcher.failure is not None:
            raise BadInput(str(self._dispatcher.failure))
        if self._dispatcher.rows < self._rows:
            self._rows = self._dispatcher.rows
            raise ForwardPassShrunk("memory ran out on a worker; start the image again")

    def count_one(self, request: VoteRequest, *, seed: int, fitted: bool = False) -> Votes:
        raise NotImplementedError("predictions are not counted by a pool")

    def images_together(self, n: int) -> int:
        return max(1, self.batch_blocks // -(-n // NOISE_BLOCK))


@contextlib.contextmanager
def pooled_engines(engine: VoteEngine, pool: Pool, *, quiet: bool) -> Iterator[list[PooledEngine]]:
    """As many engines as keep a pool busy, for `run_all`; not prepared yet.

    Args:
        engine: to count with copies of; on the host and not prepared.
        pool: of the workers, which end with the block.
        quiet: no progress display while they start.
    """
    dispatcher = Dispatcher(pool, engine, quiet=quiet)
    try:
        count = ENGINES_PER_WORKER * pool.size
        yield [PooledEngine(engine, dispatcher, pool.device) for _ in range(count)]
    finally:
        dispatcher.close()
