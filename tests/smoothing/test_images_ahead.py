"""The next images are read while votes are counted; no more than needed, and the same ones."""

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils import data as torch_data

from sween.data import as_image_set
from sween.data.dataset import ImageSet
from sween.errors import DataError
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.smoothing.images_ahead import ImagesAhead
from tests.smoothing.small import Computed

GROUPS = [[0, 1], [2, 3], [4, 5], [6]]


class Counted(torch_data.Dataset[torch.Tensor]):
    """Grey images, brighter from one to the next; `read` has the positions in order."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.threads: list[threading.Thread] = []
        self.broken: int | None = None

    def __len__(self) -> int:
        return 7

    def __getitem__(self, position: int) -> torch.Tensor:
        if position == self.broken:
            raise OSError("gone")
        self.read.append(position)
        self.threads.append(threading.current_thread())
        return torch.full((1, 2, 2), position / 10)


@pytest.fixture
def items() -> Counted:
    return Counted()


@pytest.fixture
def source(items: Counted) -> ImageSet:
    made = as_image_set(items)
    items.read.clear()
    return made


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    assert condition()


def test_one_group_is_read_ahead(items: Counted, source: ImageSet) -> None:
    with ImagesAhead(source, GROUPS) as ahead:
        wait_for(lambda: items.read == [0, 1])
        assert torch.equal(ahead.images([0, 1]), source.images([0, 1]))
        wait_for(lambda: {2, 3} <= set(items.read))  # though nobody asked
        time.sleep(0.01)
        assert max(items.read) == 3, "further groups wait on disk"
        assert torch.equal(ahead.images([2, 3]), source.images([2, 3]))
        assert torch.equal(ahead.images([3]), source.images([3])), "a group that starts again"
        assert torch.equal(ahead.images([4, 5]), source.images([4, 5]))
        assert torch.equal(ahead.images([6]), source.images([6]))
        assert (ahead.index(3), ahead.label(3)) == (3, None)


def test_engines_in_any_order_get_their_groups(items: Counted, source: ImageSet) -> None:
    wanted = {tuple(group): source.images(group) for group in GROUPS}
    items.read.clear()
    found: dict[tuple[int, ...], torch.Tensor] = {}
    with ImagesAhead(source, GROUPS, engines=2) as ahead:
        waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for group in GROUPS:
            waiting.put(group)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    group = waiting.get_nowait()
                    time.sleep(0.002 * random.random())
                    found[tuple(group)] = ahead.images(group)

        engines = [threading.Thread(target=work) for _ in range(2)]
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.join()
    assert all(torch.equal(found[group], wanted[group]) for group in wanted)
    assert sorted(items.read) == list(range(7)), "each is read once"


def test_an_image_that_cannot_be_read_is_named_when_its_turn_comes(
    items: Counted, source: ImageSet
) -> None:
    items.broken = 2
    with ImagesAhead(source, GROUPS) as ahead:
        ahead.images([0, 1])
        with pytest.raises(DataError, match=r"dataset\[2\].*gone"):
            ahead.images([2, 3])


def test_a_run_reads_its_images_in_the_background(items: Counted, tmp_path: Path) -> None:
    def logits(x: torch.Tensor) -> torch.Tensor:
        bright = x.flatten(1).mean(1)
        return torch.stack([bright, 0.5 - bright], dim=1)

    smoothed = SmoothedClassifier(Computed(logits), sigma=0.25, num_classes=2)
    run = certify_dataset(smoothed, items, out=tmp_path / "run", n0=1000, n=1000, quiet=True)
    assert items.threads[-1] is not threading.main_thread()
    tensors = torch.stack([Counted()[position] for position in range(7)])
    out = tmp_path / "again"
    again = certify_dataset(smoothed, (tensors, None), out=out, n0=1000, n=1000, quiet=True)
    votes = [[row.estimation_counts for row in one.certificates] for one in (run, again)]
    assert votes[0] == votes[1]
    assert len(votes[0]) == 7
