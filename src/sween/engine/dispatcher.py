"""Splits requests for votes into tasks, gives them to the workers of a pool, and adds the counts.

A task has noise blocks of one or several images. Votes are keyed by (seed, purpose, example, block)
and add, so it does not matter who counts which block, as long as each is added once: a result is
added only while its task is known to be at that worker, and the blocks of a lost worker go back
into the queue.
"""

import dataclasses
import itertools
import math
import platform
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Hashable, Sequence

import torch

from sween.bounds.scores import SCORE_STEPS
from sween.engine.engine import PASSES_PER_BATCH, VoteEngine
from sween.engine.pool import Counted, Event, Failed, Joined, Lost, Pool, Starting, Task, Traits
from sween.engine.votes import VoteRequest, Votes
from sween.errors import BadInput, PreparationWarning
from sween.progress import track
from sween.seeding import NOISE_BLOCK
from sween.version import __version__

TASKS_AHEAD = 2
"""Tasks at a worker: while it counts one, the next is already there."""

TASK_SECONDS = 0.5
"""Tasks that would take less are made larger, up to this: sending one costs about 2 ms."""

ANSWERS_TIMED = 16
"""Answers that tell how long a block takes: one alone may have waited for this process."""

MAX_LOSSES = 5
"""Workers that may die with the same blocks before these are held to be the reason."""

PATIENCE = 300.0
"""Seconds without a single worker, not even one that is starting, until the run ends."""

STRAGGLERS = 60.0
"""Seconds to wait at the start for workers other than the first; the others may join later."""


class Pending:
    """A request whose votes are being counted.

    `votes` is None until all of them are there. After every task with draws for it, their number is
    put into `updates`. Set `closed` if the votes are no longer needed.
    """

    def __init__(
        self,
        request: VoteRequest,
        seed: int,
        rows: int,
        shape: tuple[Sequence[str], int],
        updates: "queue.SimpleQueue[int]",
    ) -> None:
        self.request, self.seed, self.rows, self.updates = request, seed, rows, updates
        self.closed, self.votes = False, None if sum(request.sizes) else self._zeros(*shape)
        self._sums = self.votes or self._zeros(*shape)
        self._missing = sum(request.sizes)

    def _zeros(self, voters: Sequence[str], classes: int) -> Votes:
        images, scored = len(self.request.images), self.request.scored
        return Votes(
            voters,
            torch.zeros(len(voters), images, classes, dtype=torch.long),
            torch.zeros(len(voters), images, dtype=torch.long),
            list(self.request.sizes),
            None if scored is None else torch.zeros(images, SCORE_STEPS + 1, dtype=torch.long),
        )

    @property
    def kind(self) -> Hashable:
        """What the requests of one task share."""
        return self.seed, self.request.purpose, self.request.scored is None

    def blocks(self) -> "list[Blocks]":
        """All of it, by image."""
        firsts = self.request.first or [0] * len(self.request.sizes)
        sizes = zip(firsts, self.request.sizes, strict=True)
        return [Blocks(self, place, *own) for place, own in enumerate(sizes) if own[1]]

    def add(self, blocks: "Blocks", votes: Votes, row: int) -> None:
        """Add the votes on one range of blocks."""
        sums, place = self._sums, blocks.place
        sums.counts[:, place] += votes.counts[:, row]
        sums.evaluations[:, place] += votes.evaluations[:, row]
        if sums.scores is not None and votes.scores is not None:
            sums.scores[place] += votes.scores[row]
        self._missing -= blocks.draws
        if not self._missing:
            self.votes = sums
        self.updates.put(blocks.draws)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A range of noise blocks of one image of a request; `losses` workers died with it."""

    pending: Pending
    place: int
    first: int
    draws: int
    losses: int = 0

    def __len__(self) -> int:
        return -(-self.draws // NOISE_BLOCK)

    def split(self, blocks: int) -> "tuple[Blocks, Blocks]":
        head, rest = blocks * NOISE_BLOCK, self.draws - blocks * NOISE_BLOCK
        return (
            dataclasses.replace(self, draws=head),
            dataclasses.replace(self, first=self.first + blocks, draws=rest),
        )


@dataclasses.dataclass(frozen=True)
class _Sent:
    """A task at a worker: rows of its forward passes, its blocks, and when it was sent."""

    rows: int
    blocks: list[Blocks]
    at: float


class Backlog:
    """Blocks that no worker has yet, by kind; the kind whose request waited longest comes first."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, deque[Blocks]] = {}
        self.blocks = 0

    def add(self, blocks: Blocks) -> None:
        self._kinds.setdefault(blocks.pending.kind, deque()).append(blocks)
        self.blocks += len(blocks)

    def put_back(self, blocks: Blocks) -> None:
        kind = blocks.pending.kind
        self._kinds = {kind: self._kinds.get(kind, deque()), **self._kinds}
        self._kinds[kind].appendleft(blocks)
        self.blocks += len(blocks)

    def clear(self) -> None:
        self._kinds, self.blocks = {}, 0

    def take(self, wanted: int) -> list[Blocks]:
        """Up to that many blocks of one kind; none if there are none."""
        taken = list[Blocks]()
        while self._kinds and not taken:
            kind, waiting = next(iter(self._kinds.items()))
            while waiting and wanted:
                blocks = waiting.popleft()
                self.blocks -= len(blocks)
                if blocks.pending.closed:
                    continue
                if len(blocks) > wanted:
                    blocks, rest = blocks.split(wanted)
                    waiting.appendleft(rest)
                    self.blocks += len(rest)
                wanted -= len(blocks)
                taken.append(blocks)
            del self._kinds[kind]
            if waiting:
                self._kinds[kind] = waiting  # now the last, so that no kind starves
        return taken


class Dispatcher:
    """Counts requests with a pool's workers; any number of threads may submit.

    Attributes:
        failure: why no more votes will come, if so.
        rows: of the forward passes; fewer once a worker ran out of memory. Votes of requests with
            more rows do not come any more.

    Args:
        pool: of the workers; not started yet.
        engine: whose copies count; not prepared.
        quiet: no progress display while the workers start.
    """

    def __init__(self, pool: Pool, engine: VoteEngine, *, quiet: bool) -> None:
        self._pool, self._engine, self._quiet = pool, engine, quiet
        self._shape = engine.voters, engine.num_classes
        self._inbox: queue.SimpleQueue[Event | Pending | None] = queue.SimpleQueue()
        self._backlog, self._numbers = Backlog(), itertools.count()
        self._tasks: dict[int, dict[int, _Sent]] = {}
        self._last_answers: dict[int, float] = {}
        self._timed = deque[tuple[float, int]](maxlen=ANSWERS_TIMED)
        self._seconds_per_block = math.inf
        self._starting = set[int]()
        self._traits: Traits | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._alone_since = 0.0
        self.failure: BadInput | None = None
        self.rows = 0

    @property
    def traits(self) -> Traits:
        """What all workers share; known once they joined."""
        assert self._traits is not None
        return self._traits

    @property
    def workers(self) -> int:
        """How many are at work."""
        return len(self._tasks)

    @property
    def hungry(self) -> bool:
        """Whether more requests would keep the workers busier."""
        return self._backlog.blocks < TASKS_AHEAD * max(1, self.workers) * self._most_blocks

    @property
    def _most_blocks(self) -> int:
        batch = PASSES_PER_BATCH * -(-self.rows // NOISE_BLOCK)
        return max(batch, int(TASK_SECONDS / self._seconds_per_block))

    def start(self, image: torch.Tensor) -> None:
        """Start the workers, unless they are started, and wait until they are prepared.

        Raises:
            BadInput: there are none, or they would not all compute the same.
        """
        if self._thread.ident is not None:
            return
        self._alone_since = time.monotonic()
        self._thread.start()
        self._pool.start(self._engine, image, self._inbox.put)
        with track("start workers", self._pool.size, quiet=self._quiet) as advance:
            began, shown = time.monotonic(), 0
            while self.workers < self._pool.size and self.failure is None:
                if self.workers and time.monotonic() > began + STRAGGLERS:
                    break
                time.sleep(0.02)
                advance(self.workers - shown, "ready")
                shown = self.workers
        if self.failure is not None:
            raise self.failure
        for message in self.traits.warnings:
            warnings.warn(message, PreparationWarning, stacklevel=2)

    def close(self) -> None:
        """Stop counting, and the workers."""
        self.failure = self.failure or BadInput("the pool of workers was closed")
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.stop()

    def submit(
        self, request: VoteRequest, *, seed: int, rows: int, updates: "queue.SimpleQueue[int]"
    ) -> Pending:
        """Count the votes of a request, with forward passes of that many rows."""
        pending = Pending(request, seed, rows, self._shape, updates)
        self._inbox.put(pending)
        return pending

    def _serve(self) -> None:
        while True:
            try:
                message = self._inbox.get(timeout=1.0)
            except queue.Empty:
                self._refuse_desertion()
                continue
            if message is None:
                return
            try:
                self._handle(message)
                self._assign()
            except BadInput as error:
                self.failure = error
            except Exception as error:  # whoever waits for votes must learn of it
                self.failure = BadInput(f"the pool of workers: {type(error).__name__}: {error}")

    def _handle(self, message: Event | Pending) -> None:
        if isinstance(message, Pending):
            if message.rows == self.rows:
                for blocks in message.blocks():
                    self._backlog.add(blocks)
        elif isinstance(message, Starting):
            self._starting.add(message.worker)
        elif isinstance(message, Joined):
            self._starting.discard(message.worker)
            self._join(message.worker, message.traits)
        elif isinstance(message, Lost):
            self._lose(message.worker)
        elif isinstance(message, Failed):
            raise BadInput(message.reason)
        else:
            self._add(message)

    def _join(self, worker: int, traits: Traits) -> None:
        if self._traits is None:
            _refuse_other(_without_build(traits), _with_own_versions(traits))
            self._traits, self.rows = traits, traits.rows
        _refuse_other(traits, self._traits)
        self._shrink(traits)
        self._tasks[worker] = {}

    def _shrink(self, traits: Traits) -> None:
        """If memory ran out, all unfinished images start again with smaller forward passes."""
        if traits.rows < self.rows:
            self._traits, self.rows = traits, traits.rows
            self._backlog.clear()

    def _lose(self, worker: int) -> None:
        self._starting.discard(worker)
        self._alone_since = time.monotonic()
        for sent in self._tasks.pop(worker, {}).values():
            for blocks in sent.blocks:
                if blocks.losses + 1 == MAX_LOSSES:
                    raise BadInput(
                        "workers",
                        expected="that they survive their work",
                        got=f"{MAX_LOSSES} deaths in a row over the same votes",
                        fix="check the memory of the nodes; start fewer `workers`, or lower "
                        "`forward_rows` in a new folder",
                    )
                if blocks.pending.rows == self.rows:
                    self._backlog.put_back(dataclasses.replace(blocks, losses=blocks.losses + 1))
        self._pool.replace(worker)

    def _add(self, counted: Counted) -> None:
        """Add the votes of a task; those of a worker that was given up are already requested again.

        Votes of another shape than the current one do not count either.
        """
        sent = self._tasks.get(counted.worker, {}).pop(counted.task, None)
        if isinstance(counted.answer, Traits):
            _refuse_other(counted.answer, self.traits)
            self._shrink(counted.answer)
        if sent is None or sent.rows != self.rows:
            return
        if isinstance(counted.answer, Traits):
            for blocks in sent.blocks:
                self._backlog.put_back(blocks)
            return
        self._time(counted.worker, sent)
        for row, blocks in enumerate(sent.blocks):
            blocks.pending.add(blocks, counted.answer, row)

    def _time(self, worker: int, sent: "_Sent") -> None:
        """Learn how long a block takes from the answers to the tasks in the workers' queues."""
        now = time.monotonic()
        began = max(sent.at, self._last_answers.get(worker, 0.0))
        self._last_answers[worker] = now
        self._timed.append((now - began, sum(map(len, sent.blocks))))
        seconds, blocks = map(sum, zip(*self._timed, strict=True))
        self._seconds_per_block = max(seconds, 1e-9) / blocks

    def _assign(self) -> None:
        """Give queued blocks to the workers with the fewest tasks."""
        while self._backlog.blocks and self._tasks:
            worker = min(self._tasks, key=lambda each: len(self._tasks[each]))
            if len(self._tasks[worker]) == TASKS_AHEAD:
                return
            task = self._backlog.take(self._size_of_next())
            if task:
                number = next(self._numbers)
                self._tasks[worker][number] = _Sent(self.rows, task, time.monotonic())
                self._pool.submit(
                    worker, Task(number, _joint(task), task[0].pending.seed, self.rows)
                )

    def _size_of_next(self) -> int:
        """Blocks of the next task: a small share of what is left, but whole passes."""
        whole = self.traits.whole_blocks
        share = self._backlog.blocks // (TASKS_AHEAD * len(self._tasks))
        return max(1, min(share, self._most_blocks) // whole) * whole

    def _refuse_desertion(self) -> None:
        if self._tasks or self._starting or self.failure is not None:
            return
        if time.monotonic() > self._alone_since + PATIENCE:
            self.failure = BadInput(
                "workers",
                expected=f"at least one within {PATIENCE:.0f} seconds",
                got="none",
                fix="check the cluster; the same command resumes the run",
            )


def _joint(task: Sequence[Blocks]) -> VoteRequest:
    """One request for all blocks of a task."""
    requests = [blocks.pending.request for blocks in task]
    scored = [
        request.scored[blocks.place]
        for request, blocks in zip(requests, task, strict=True)
        if request.scored is not None
    ]
    pairs = list(zip(requests, task, strict=True))
    return VoteRequest(
        torch.stack([request.images[blocks.place] for request, blocks in pairs]),
        [request.examples[blocks.place] for request, blocks in pairs],
        requests[0].purpose,
        [blocks.draws for blocks in task],
        [blocks.first for blocks in task],
        scored or None,
    )


def _without_build(traits: Traits) -> Traits:
    """With torch's version alone: this machine may have the build for CPUs, a worker a GPU's."""
    return dataclasses.replace(traits, torch=traits.torch.partition("+")[0])


def _with_own_versions(traits: Traits) -> Traits:
    """As a worker with the versions of this process, which records the run, would be."""
    own = dataclasses.replace(
        traits, host=platform.node(), sween=__version__, torch=torch.__version__
    )
    return _without_build(own)


def _refuse_other(traits: Traits, wanted: Traits) -> None:
    """Refuse a worker that would not compute what the others do."""
    for name in ("sween", "torch", "device", "precision", "rounding"):
        own, other = getattr(traits, name), getattr(wanted, name)
        if own != other and not (name == "rounding" and traits.rows != wanted.rows):
            raise BadInput(
                f"{name} on {traits.host}",
                expected=f"{other}, as on {wanted.host}",
                got=own,
                fix="all votes on an image must come from the same function: use nodes with the "
                "same hardware and the same versions of sween and torch",
            )
