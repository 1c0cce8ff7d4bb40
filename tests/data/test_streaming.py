"""Images larger than memory: a cache built once by many processes, batches in bounded memory."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data as torch_data

from sween.cli import main
from sween.data import Dataset, as_dataset, as_image_set, decode_cache
from sween.data import read_ahead as read_ahead_module
from sween.data.dataset import Pixels, StoredPixels
from sween.data.decode_cache import DecodedFile
from sween.data.image_folder import FilePixels, load_image_folder
from sween.data.read_ahead import read_ahead
from sween.errors import BadInput, DataError
from tests.cli.mounting import mounted

from .conftest import Refuses
from .test_images import png

COUNT = 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("SWEEN_CACHE", str(folder))
    return folder


@pytest.fixture
def files(tmp_path: Path) -> FilePixels:
    folder = tmp_path / "images"
    folder.mkdir()
    names = tuple(f"{index}.png" for index in range(COUNT))
    for index, name in enumerate(names):
        pixels = np.random.default_rng(index).integers(0, 256, (9, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return FilePixels(folder, names, 8)


@pytest.fixture
def chunks_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead_module, "CHUNK", 4)


def test_results_come_in_order_and_few_are_read_ahead() -> None:
    started: list[int] = []

    def read(key: int) -> int:
        started.append(key)
        time.sleep(0.001 * (key % 3))
        return -key

    with contextlib.closing(read_ahead(read, range(100), ahead=3, threads=2)) as results:
        for key in range(20):
            assert next(results) == -key
            assert len(started) <= key + 1 + 3
    count = len(started)
    time.sleep(0.01)
    assert len(started) == count <= 24, "closing stops it"


def test_an_error_comes_where_its_result_would() -> None:
    results = read_ahead(lambda key: 1 // key, [2, 1, 0, 3])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.usefixtures("chunks_of_four")
def test_a_build_holds_few_images_and_streams_the_same(files: FilePixels) -> None:
    wanted = files.load(range(COUNT))
    groups = [[3, 1, 39], [0], [7, 7]]
    for pixels, group in zip(files.stream(groups), groups, strict=True):
        assert torch.equal(pixels, wanted[group])
    assert files.contents() == FilePixels(files.folder, files.names, 8).contents()
    assert torch.equal(files.load_all(), wanted)


_BUILDERS = """
import os, signal, sys, time
from pathlib import Path
from sween.data import read_ahead
from sween.data.image_folder import FilePixels

folder, log, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
read_ahead.CHUNK = 4
read = FilePixels._read

def build(slow):
    def logged(self, position, content=None):
        with log.open("a") as stream:
            stream.write(f"{position}\\n")
        if slow and position >= 20:
            time.sleep(600)  # until it is killed
        return read(self, position, content)
    FilePixels._read = logged
    files = FilePixels(folder, tuple(f"{index}.png" for index in range(count)), 8)
    os.write(1, f"{files.load_all().sum().item()}\\n".encode())

def start(slow):
    child = os.fork()
    if not child:
        build(slow)
        os._exit(0)
    return child

first = start(True)
while not log.exists() or len(log.read_text().splitlines()) < 17:
    time.sleep(0.005)
others = [start(False) for _ in range(3)]
time.sleep(0.5)
os.kill(first, signal.SIGKILL)
for child in (first, *others):
    os.waitpid(child, 0)
"""


def test_of_processes_that_start_together_one_decodes_and_one_continues_for_the_killed(
    files: FilePixels, cache: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", _BUILDERS, str(files.folder), str(log), str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    wanted = str(files.load(range(COUNT)).sum().item())
    assert done.stdout.split() == [wanted] * 3
    decoded = [int(line) for line in log.read_text().splitlines()]
    again = {position for position in decoded if decoded.count(position) > 1}
    assert sorted(set(decoded)) == list(range(COUNT))
    assert set(range(4)).isdisjoint(again), "it started anew"
    assert len(again) <= 12, "more than the chunks that were not yet written when it was killed"
    assert max(decoded.count(position) for position in decoded) <= 2
    assert [path.suffix for path in cache.glob("*.*")] == [".uint8"], "nothing is left behind"


def test_waiting_is_said_once(
    files: FilePixels, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read, entered, go_on = FilePixels._read, threading.Event(), threading.Event()

    def slow(self: FilePixels, position: int, content: bytes | None = None) -> torch.Tensor:
        entered.set()
        go_on.wait(60)
        return read(self, position, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FilePixels, "_read", slow)
        builder = threading.Thread(target=files.load_all)
        builder.start()
        entered.wait(10)
        waiter = threading.Thread(target=files.load_all)
        waiter.start()
        text, until = "", time.monotonic() + 30
        while not text and time.monotonic() < until:
            time.sleep(0.05)
            text += capsys.readouterr().err
        time.sleep(0.5)  # it looks again
        go_on.set()
        builder.join()
        waiter.join()
    said = (text + capsys.readouterr().err).splitlines()
    assert len(said) == 1
    assert f"waiting for another process, which decodes these {COUNT} images" in said[0]
    assert str(cache) in said[0]


@pytest.mark.usefixtures("chunks_of_four")
def test_an_interrupted_build_is_kept_and_that_of_other_images_removed(
    files: FilePixels, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FilePixels._read

    def interrupted(self: FilePixels, position: int, content: bytes | None = None) -> torch.Tensor:
        if position == 30:
            raise KeyboardInterrupt
        return read(self, position, content)

    monkeypatch.setattr(FilePixels, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.load_all()
    (left,) = cache.glob("*.building/pixels")
    assert 0 < left.stat().st_size < COUNT * 192
    monkeypatch.setattr(FilePixels, "_read", read)
    FilePixels(files.folder, files.names[:3], 8).load_all()
    assert [path.suffix for path in cache.iterdir()] == [".uint8"]


@pytest.mark.usefixtures("chunks_of_four")
def test_a_build_where_only_files_can_be_locked(
    files: FilePixels, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system: the lock is then a file in the folder of the build."""
    lock = fcntl.flock

    def of_files(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", of_files)
    (pixels,) = files.stream([range(COUNT)])
    assert torch.equal(pixels, files.load(range(COUNT)))
    assert [path.suffix for path in cache.iterdir() if path.name != "images"] == [".uint8"]


@pytest.mark.usefixtures("chunks_of_four")
def test_a_build_that_another_machine_does_not_see(
    files: FilePixels, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks of some shared file systems hold on one machine only."""
    monkeypatch.setattr(decode_cache, "_build_lock", building)
    monkeypatch.setattr(decode_cache, "_remove_abandoned", lambda cache: None)
    read, both = FilePixels._read, threading.Barrier(2)
    other = threading.Thread(target=FilePixels(files.folder, files.names, 8).load_all)

    def at_once(self: FilePixels, position: int, content: bytes | None = None) -> torch.Tensor:
        if position == 10 and not other.ident:
            other.start()
        if position == COUNT - 1:
            both.wait(timeout=60)  # neither ends before the other has begun
        return read(self, position, content)

    monkeypatch.setattr(FilePixels, "_read", at_once)
    found = files.load_all()
    other.join()
    monkeypatch.setattr(FilePixels, "_read", read)
    assert torch.equal(found, files.load(range(COUNT)))
    assert [path.suffix for path in cache.iterdir() if path.name != "images"] == [".uint8"]


@contextlib.contextmanager
def building(file: DecodedFile, folder: Path) -> Iterator[bool]:
    """A lock that stops nobody."""
    folder.mkdir(exist_ok=True)
    yield not file.is_complete()


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("SWEEN_CACHE", str(disk / "cache"))
    with mounted(disk, ["-t", "tmpfs", "-o", "size=8k", "tmpfs"]):
        yield disk


@pytest.mark.usefixtures("chunks_of_four")
@pytest.mark.parametrize("foreseen", [True, False])
def test_a_full_disk(
    foreseen: bool,
    small_disk: Path,
    files: FilePixels,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    """Images that fit in memory are decoded there; for others there is one line."""
    larger = FilePixels(files.folder, files.names, 16)
    if not foreseen:  # as with a quota, or where another process fills the disk
        plenty = shutil.disk_usage(files.folder)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: plenty)
    with pytest.warns(UserWarning, match=r"not cached: .*No space left"):
        pixels = larger.load_all()
    monkeypatch.setenv("SWEEN_CACHE", str(files.folder.parent / "cache"))
    assert torch.equal(pixels, larger.load(range(COUNT)))
    monkeypatch.setenv("SWEEN_CACHE", str(small_disk / "cache"))
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1000")
    with refuses(DataError, str(small_disk), "0.0 GB", "No space left", "SWEEN_CACHE to a folder"):
        larger.load_all()
    assert list(small_disk.iterdir()) == []


def test_a_limit_that_is_no_number(
    files: FilePixels, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "4 GB")
    with refuses(BadInput, "SWEEN_STREAM_ABOVE", "a number of bytes", "4 GB", "unset it"):
        as_image_set((files.load_all(), None)).held_in_memory()


class Photos(torch_data.Dataset[Any]):
    """Images made from their index; each process that reads some leaves a file in `seen`."""

    def __init__(self, count: int, *, broken: int | None = None, seen: Path | None = None) -> None:
        self.count, self.broken, self.seen = count, broken, seen

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.broken:
            raise OSError("a broken file\nof two lines")
        if self.seen is not None:
            (self.seen / str(os.getpid())).touch()
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(0, 256, (3, 8, 8), generator=generator, dtype=torch.uint8)
        return image, index % 2


class Killed(Photos):
    """Worker processes that read one of its images are killed, as when memory is short."""

    def __init__(self) -> None:
        super().__init__(40)
        self.targets, self.classes = [0, 1] * 20, ["even", "odd"]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 30 and torch_data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def killed() -> Dataset:
    return as_dataset(torch_data.DataLoader(Killed(), num_workers=1), Photos(4), name="killed")


def test_a_killed_worker_process_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1")
    options = [
        "--dataset",
        f"{__name__}:killed",
        "--arch",
        "tests.models.factories:of_small_photos",
    ]
    command = ["train", *options, "--sigma", "0.5", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"sween: error: DataLoader worker .*; run it again.*\n", said)


def batches(pixels: Pixels, groups: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.cat(list(pixels.stream(groups)))


def test_the_worker_processes_of_a_loader_read_its_items(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    loader = torch_data.DataLoader(Photos(60, seen=seen), num_workers=2, batch_size=7)
    one, other = as_image_set(Photos(60)).pixels, as_image_set(loader).pixels
    groups = [range(start, start + 20) for start in (40, 0, 20)]
    state = torch.get_rng_state()
    assert torch.equal(batches(one, groups), batches(other, groups))
    assert one.contents() == other.contents()
    assert torch.equal(one.load(range(59)), other.load(range(59)))
    assert torch.equal(state, torch.get_rng_state())
    assert len(list(seen.iterdir())) > 2


def test_an_item_that_a_worker_process_cannot_read(refuses: Refuses) -> None:
    loader = torch_data.DataLoader(Photos(60, broken=33), num_workers=2)
    with refuses(DataError, "dataset[33]", "OSError: a broken file", "read that item"):
        as_image_set(loader)


def test_training_images_of_ones_own_are_held_or_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = as_dataset(Photos(60), Photos(4))
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1000")
    read = as_dataset(Photos(60), Photos(4))
    assert isinstance(held.train.pixels, StoredPixels)
    assert not isinstance(read.train.pixels, StoredPixels)
    for split, other in ((held.train, read.train), (held.weights, read.weights)):
        assert split.pixels.fingerprint() == other.pixels.fingerprint()
        assert split.pixels.contents() is other.pixels.contents() is None
        assert torch.equal(split.pixels.load_all(), other.pixels.load_all())
        assert torch.equal(split.images([1, 0]), other.images([1, 0]))
    groups = [[4, 2], [57, 0]]
    by_position = lambda position, photo: photo + position  # noqa: E731
    for crop in (None, by_position):
        parts = [torch.cat(list(one.train.pixels.stream(groups, crop))) for one in (held, read)]
        assert torch.equal(*parts)


def test_one_class_or_none(tmp_path: Path, refuses: Refuses) -> None:
    root = tmp_path / "root"
    (root / "val").mkdir(parents=True)
    with refuses(DataError, str(root / "val"), "an empty folder", "lay it out"):
        load_image_folder(root, image_size=8)
    for path in ("train/cat/0.png", "train/cat/1.png", "val/cat/0.png"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / path)
    with refuses(BadInput, str(root), "2 or more", "got cat", "another class"):
        load_image_folder(root, image_size=8).check_trainable()


def test_a_pixel_and_a_bomb(tmp_path: Path, files: FilePixels, refuses: Refuses) -> None:
    """One pixel becomes an image of one colour; 20,000 x 20,000 pixels are refused unread."""
    Image.new("RGB", (1, 1), (1, 2, 3)).save(files.folder / "7.png")
    assert torch.equal(files.load_all()[7], torch.tensor([1, 2, 3])[:, None, None].expand(3, 8, 8))
    (files.folder / "9.png").write_bytes(png(20_000, 20_000, 8, b""))
    seven = FilePixels(files.folder, files.names, 8)
    for read in (seven.load_all, seven.contents, seven.photo_contents):
        with refuses(DataError, "9.png", "89478485 pixels", "a decompression bomb", "re-save"):
            read()


def test_photos_are_covered_byte_for_byte(files: FilePixels, cache: Path) -> None:
    """Once: the digest is kept, and a file that changed changes it."""
    before = files.photo_contents()
    assert len(list(cache.iterdir())) == 1, "no decoded images"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FilePixels, "_photo", None)  # would fail if it were called
        assert files.photo_contents() == before
    path = files.folder / "2.png"
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    assert files.photo_contents() != before
    path.write_bytes(content)
    assert files.photo_contents() == before
