"""Any pool writes the rows of one process, whatever becomes of its workers."""

import queue
import threading
import time
import types
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import sween
from sween.engine import dispatcher
from sween.engine.dispatcher import MAX_LOSSES, Dispatcher
from sween.engine.engine import PASSES_PER_BATCH
from sween.engine.pool import Counted, Joined, Lost, Starting, Task
from sween.engine.votes import VoteRequest
from sween.errors import BadInput
from sween.sampling import CertifySettings
from sween.seeding import noise_blocks
from sween.smoothing import SmoothedClassifier, certify_dataset
from tests.cli.command import assert_refused
from tests.cluster.certified import SETTINGS, certify, rows
from tests.cluster.pools import (
    FAKE,
    FakePool,
    MortalPool,
    OddPool,
    OutOfMemoryPool,
    ThreadPool,
    votes_for,
)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_pool_writes_the_same_folder_as_one_process(name: str, tmp_path: Path) -> None:
    members, exit = name == "fixed", "paper" if name == "decide" else "none"
    before = threading.active_count()
    one = certify(tmp_path / "one", SETTINGS[name], None, members=members, exit=exit)
    pool = ThreadPool(3)
    assert certify(tmp_path / "pool", SETTINGS[name], pool, members=members, exit=exit) == one
    assert threading.active_count() == before
    assert len({worker for worker, _ in pool.tasks}) == 3
    config = "config.toml"
    assert (tmp_path / "pool" / config).read_bytes() == (tmp_path / "one" / config).read_bytes()


def test_each_noise_block_is_counted_once_in_full_passes(tmp_path: Path) -> None:
    pool, settings = ThreadPool(2), CertifySettings(n=2_050)
    certify(tmp_path / "out", settings, pool, images=7)
    found = Counter[tuple[str, int, int, int]]()
    for _, task in pool.tasks:
        request = task.request
        for example, size, first in zip(
            request.examples, request.sizes, request.first or (), strict=True
        ):
            found.update(
                (request.purpose, example, first + block, used)
                for block, used in noise_blocks(size)
            )
    wanted = Counter(
        (purpose, example, block, used)
        for example in range(7)
        for purpose, n in (("selection", 100), ("estimation", 2_050))
        for block, used in noise_blocks(n)
    )
    assert found == wanted
    short = [task for _, task in pool.tasks if sum(task.request.sizes) < task.rows]
    assert len(short) <= 4  # the last ones of a purpose


def test_tasks_of_fast_workers_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the driver and the network time, however short it is."""
    sizes: dict[float, list[int]] = {}
    for seconds in (0.0, dispatcher.TASK_SECONDS):
        monkeypatch.setattr(dispatcher, "TASK_SECONDS", seconds)
        pool, model = FakePool(1, small=1_000_000), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        ensemble = sween.WeightedEnsemble([model] * 3)
        smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
        image = sween.load_dataset("digits").test.images([0])
        settings = CertifySettings(n=400_000)
        certify_dataset(
            smoothed, image, out=tmp_path / str(seconds), settings=settings, pool=pool, quiet=True
        )
        sizes[seconds] = [sum(task.request.sizes) for _, task in pool.tasks]
    batch = PASSES_PER_BATCH * FAKE.rows
    short, long = sizes.values()
    assert max(short) == batch
    assert max(long) > 5 * batch
    assert sum(short) == sum(long) == 100 + 400_000


def test_two_answers_at_once_do_not_make_a_worker_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process was busy when the first of them came; a huge task would be the result."""
    now = 0.0
    clock = types.SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(dispatcher, "time", clock)
    smoothed = SmoothedClassifier(nn.Flatten(), sigma=0.5, num_classes=10)
    pool = SilentPool(1)
    asking = Dispatcher(pool, smoothed.engine, quiet=True)
    asking.start(torch.zeros(1, 2, 5))
    request = VoteRequest(torch.zeros(1, 1, 2, 5), [0], "estimation", [400_000])
    asking.submit(request, seed=0, rows=FAKE.rows, updates=queue.SimpleQueue())
    sent = [pool.asked.get(timeout=10) for _ in range(dispatcher.TASKS_AHEAD)]
    for answered, seconds in enumerate((1, 1, 1, 0, 1)):
        now += seconds
        pool.report(Counted(0, sent[answered].number, votes_for(sent[answered], 0)))
        sent.append(pool.asked.get(timeout=10))
    asking.close()
    assert {sum(task.request.sizes) for task in sent} == {PASSES_PER_BATCH * FAKE.rows}


def test_dead_workers_cost_nothing_but_time(tmp_path: Path) -> None:
    settings = SETTINGS["decide"]
    one = certify(tmp_path / "one", settings, None)
    pool = MortalPool(2, deadly={1, 4, 5, 9}.__contains__)
    assert certify(tmp_path / "pool", settings, pool) == one
    assert len(pool.replaced) >= 3


@pytest.mark.slow
def test_votes_that_kill_every_worker_end_the_run_and_it_resumes(tmp_path: Path) -> None:
    out, settings = tmp_path / "out", CertifySettings(n=4_000)
    path = out / "certificates.jsonl"
    pool = MortalPool(2, deadly=lambda _: path.exists() and path.stat().st_size > 0)
    with pytest.raises(BadInput, match=f"{MAX_LOSSES} deaths"):
        certify(out, settings, pool)
    assert 0 < len(path.read_bytes().splitlines()) < 12
    one = certify(tmp_path / "one", settings, None)
    assert certify(out, settings, ThreadPool(1)) == one


@pytest.mark.parametrize("name", ["fixed", "decide"])
def test_votes_on_an_image_come_from_one_shape(name: str, tmp_path: Path) -> None:
    """Classes say here which shape a vote came from."""
    out, model = tmp_path / "out", nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images = sween.load_dataset("digits").test.images(range(40))
    smoothed = SmoothedClassifier(sween.WeightedEnsemble([model] * 3), sigma=0.5, num_classes=10)
    pool = FakePool(3, small=8)
    certify_dataset(smoothed, images, out=out, settings=SETTINGS[name], pool=pool, quiet=True)
    shapes = Counter[int]()
    for row in rows(out):
        label = int(row["forward_rows"] < FAKE.rows)
        for kind in ("selection_counts", "estimation_counts"):
            assert row[kind][label] == sum(row[kind])
        shapes[row["forward_rows"]] += 1
    assert set(shapes) <= {FAKE.rows, FAKE.rows // 2}
    assert shapes[FAKE.rows // 2] > 0


@pytest.mark.parametrize(
    ("trait", "value"),
    [("sween", "0.0.1"), ("torch", "1.0"), ("precision", "float16"), ("rounding", "f00")],
)
def test_workers_that_compute_differently_are_refused(
    trait: str, value: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(BadInput, match=f"{trait} on .*: expected .*, got .*; .*same"):
        certify(out, SETTINGS["fixed"], OddPool(2, **{trait: value}))
    assert not out.exists()


@pytest.mark.parametrize(("trait", "value"), [("sween", "0.0.1"), ("torch", "1.0")])
def test_workers_with_other_versions_than_this_process_are_refused(
    trait: str, value: str, tmp_path: Path
) -> None:
    """Even if they all agree: the run records the versions of this process."""
    out = tmp_path / "out"
    with pytest.raises(BadInput, match=f"{trait} on .*: expected .*, got {value}; .*same"):
        certify(out, SETTINGS["fixed"], OddPool(1, **{trait: value}))
    assert not out.exists()


def test_workers_may_have_another_build_of_torch(tmp_path: Path) -> None:
    build = torch.__version__.partition("+")[0] + "+cu999"
    certify(tmp_path / "out", SETTINGS["fixed"], OddPool(1, torch=build))


def test_workers_that_compute_differently_with_smaller_passes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"rounding on .*: expected .*, got .*; .*same"):
        certify(tmp_path / "out", SETTINGS["fixed"], OutOfMemoryPool(2))


class SilentPool(ThreadPool):
    """A worker for which the test answers."""

    def hire(self) -> None:
        self.asked = queue.SimpleQueue[Task]()
        self.report(Joined(0, FAKE))

    def submit(self, worker: int, task: Task) -> None:
        self.asked.put(task)


class LatePool(ThreadPool):
    """Workers come when they are called."""

    def hire(self) -> None:
        pass


@pytest.mark.slow
def test_patience_begins_when_the_last_worker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    clock = types.SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(dispatcher, "time", clock)
    smoothed = SmoothedClassifier(nn.Flatten(), sigma=0.5, num_classes=10)
    pool = LatePool(1)
    waiting = Dispatcher(pool, smoothed.engine, quiet=True)
    now += 2 * dispatcher.PATIENCE  # images were checked meanwhile
    threading.Timer(1.5, lambda: pool.report(Joined(0, FAKE))).start()
    waiting.start(torch.zeros(1, 2, 5))
    now += 2 * dispatcher.PATIENCE  # of work
    pool.report(Lost(0))
    time.sleep(1.5)
    assert waiting.failure is None
    pool.report(Starting(1))
    time.sleep(0.1)
    now += 2 * dispatcher.PATIENCE  # it is being compiled
    time.sleep(1.5)
    assert waiting.failure is None
    pool.report(Lost(1))
    time.sleep(0.1)
    now += 2 * dispatcher.PATIENCE
    time.sleep(1.5)
    assert "at least one" in str(waiting.failure)
    waiting.close()


class Overflowing(nn.Module):
    """Finite on the images themselves, not on noisy ones that are far off."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        far = images.flatten(1).abs().amax(dim=1, keepdim=True) > 2.2
        return torch.where(far, torch.inf, images.flatten(1)[:, :10])


def test_what_a_worker_refuses_is_the_error_of_one_process(tmp_path: Path) -> None:
    images = sween.load_dataset("digits").test.images(range(8))
    smoothed = SmoothedClassifier(Overflowing(), sigma=0.4, num_classes=10)
    errors = list[str]()
    for pool in (None, ThreadPool(2)):
        with pytest.raises(BadInput) as caught:
            certify_dataset(smoothed, images, out=tmp_path / "out", n=1_000, pool=pool, quiet=True)
        errors.append(str(caught.value))
        assert not (tmp_path / "out").exists()
    assert errors[0] == errors[1]
    assert "finite" in errors[0]


def test_a_run_goes_on_with_another_engine(tmp_path: Path) -> None:
    settings = SETTINGS["fixed"]
    one = certify(tmp_path / "one", settings, None)
    certify(tmp_path / "out", settings, ThreadPool(2))
    path = tmp_path / "out" / "certificates.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[3:8]))  # as if these had been finished first
    assert certify(tmp_path / "out", settings, None) == one
    path.write_bytes(b"".join([*lines[6:], lines[1]]))
    assert certify(tmp_path / "out", settings, ThreadPool(1)) == one


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--engine rey", ("rey", "did you mean 'ray'")),
        ("--workers 2", ("--workers", "--engine ray")),
    ],
)
def test_engines_and_their_options_are_checked(
    options: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    line = f"certify digits-sween3-gaussian-sigma0.50 --indices 0:3 --out {tmp_path}/out {options}"
    assert_refused(line, *parts, watched=(tmp_path,))
