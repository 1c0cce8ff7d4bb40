"""Pools of threads: what a cluster does, in this process."""

import copy
import dataclasses
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

import sween
from sween.engine import VoteEngine, Votes
from sween.engine.pool import Counted, Event, Failed, Joined, Lost, PoolWorker, Task, Traits
from sween.errors import SweenError


class ThreadPool:
    """Workers that are threads, each with its own copy of the engine."""

    device = "cpu"

    def __init__(self, size: int) -> None:
        self.size = size
        self.replaced = list[int]()
        self.tasks = list[tuple[int, Task]]()
        self.workers: dict[int, PoolWorker] = {}

    def start(
        self, engine: VoteEngine, image: torch.Tensor, report: Callable[[Event], None]
    ) -> None:
        self.engine, self.image, self.report = engine, image, report
        self.inboxes: dict[int, queue.SimpleQueue[Task | None]] = {}
        self.threads = list[threading.Thread]()
        for _ in range(self.size):
            self.hire()

    def hire(self) -> None:
        worker = len(self.threads)
        self.inboxes[worker] = queue.SimpleQueue()
        self.threads.append(threading.Thread(target=self._serve, args=(worker,), daemon=True))
        self.threads[-1].start()

    def _serve(self, worker: int) -> None:
        try:
            self.report(Joined(worker, self.traits(worker)))
            while (task := self.inboxes[worker].get()) is not None:
                event = self.answer(worker, task)
                self.report(event)
                if isinstance(event, Lost):
                    return
        except SweenError as error:
            self.report(Failed(str(error)))

    def traits(self, worker: int) -> Traits:
        """Prepare a worker."""
        self.workers[worker] = PoolWorker(copy.deepcopy(self.engine), self.image, self.device)
        return self.workers[worker].traits

    def answer(self, worker: int, task: Task) -> Event:
        """Count a task."""
        return Counted(worker, task.number, self.workers[worker].count(task))

    def submit(self, worker: int, task: Task) -> None:
        self.tasks.append((worker, task))
        self.inboxes[worker].put(task)

    def replace(self, worker: int) -> None:
        self.replaced.append(worker)
        self.hire()

    def stop(self) -> None:
        for inbox in self.inboxes.values():
            inbox.put(None)
        for thread in self.threads:
            thread.join(timeout=30)
            assert not thread.is_alive()


class OddPool(ThreadPool):
    """The last worker differs from the others in one of its traits."""

    def __init__(self, size: int, **odd: Any) -> None:
        super().__init__(size)
        self.odd = odd

    def traits(self, worker: int) -> Traits:
        traits = super().traits(worker)
        return dataclasses.replace(traits, **self.odd) if worker == self.size - 1 else traits


class MortalPool(ThreadPool):
    """Workers die with the tasks of these numbers; of some the result still comes, too late."""

    def __init__(self, size: int, deadly: Callable[[int], bool]) -> None:
        super().__init__(size)
        self.deadly = deadly

    def answer(self, worker: int, task: Task) -> Event:
        event = super().answer(worker, task)
        if not self.deadly(task.number):
            return event
        self.report(Lost(worker))
        return event


class OutOfMemoryPool(ThreadPool):
    """The first worker runs out of memory; with smaller passes the last rounds differently."""

    def answer(self, worker: int, task: Task) -> Event:
        first = self.workers[0]
        rows = first.traits.rows
        if worker == 0 and task.rows == rows:
            first._engine.shrink_to(rows // 2)
        answer = self.workers[worker].count(task)
        if isinstance(answer, Traits) and worker == self.size - 1:
            answer = dataclasses.replace(answer, rounding="other")
        return Counted(worker, task.number, answer)


class FakePool(ThreadPool):
    """Workers that do not compute: all votes of a task go to the class that its shape says.

    The first worker runs out of memory at its task number `small`: passes then have half the rows.
    """

    def __init__(self, size: int, small: int) -> None:
        super().__init__(size)
        self.small = small

    def traits(self, worker: int) -> Traits:
        return FAKE

    def answer(self, worker: int, task: Task) -> Event:
        if task.number >= self.small and task.rows == FAKE.rows:
            shrunk = dataclasses.replace(FAKE, rows=FAKE.rows // 2, rounding="other")
            return Counted(worker, task.number, shrunk)
        return Counted(worker, task.number, votes_for(task, int(task.rows < FAKE.rows)))


FAKE = Traits(
    host="here",
    sween=sween.__version__,
    torch=torch.__version__,
    device="cpu",
    precision="float32",
    rounding="bits",
    rows_asked=200,
    rows=200,
    whole_blocks=2,
    full_blocks=2,
)


def votes_for(task: Task, label: int, classes: int = 10) -> Votes:
    """All votes of a task for one class, by a model without members or variants."""
    sizes = torch.tensor(task.request.sizes)
    counts = torch.zeros(1, len(sizes), classes, dtype=torch.long)
    counts[0, :, label] = sizes
    return Votes(["model"], counts, 3 * sizes[None], list(task.request.sizes))
