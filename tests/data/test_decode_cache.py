"""Image files are decoded once; a changed file is decoded again; no cache is no failure."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data.image_folder import FilePixels
from sween.errors import DataError
from sween.paths import cache_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SWEEN_CACHE", str(folder))
    return folder


@pytest.fixture
def files(tmp_path: Path) -> FilePixels:
    folder = tmp_path / "images"
    folder.mkdir()
    names = tuple(f"{index}.png" for index in range(5))
    for index, name in enumerate(names):
        pixels = np.random.default_rng(index).integers(0, 256, (9, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return FilePixels(folder, names, 8)


def test_decoded_once_and_the_same(
    files: FilePixels, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = files.load(range(5))
    assert torch.equal(files.load_all(), wanted)
    (kept,) = cache.glob("*.uint8")
    assert kept.stat().st_size == wanted.numel()
    smaller = FilePixels(files.folder, files.names, 6)
    assert torch.equal(smaller.load_all(), smaller.load(range(5)))
    monkeypatch.setattr(FilePixels, "_read", None)  # would fail if it were called
    files.load_all().zero_()
    assert torch.equal(files.load_all(), wanted)


def test_a_changed_file_is_decoded_again(files: FilePixels) -> None:
    before = files.load_all().clone()
    path = files.folder / "2.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    os.utime(path, ns=(1, 1))
    after = files.load_all()
    assert not torch.equal(after[2], before[2])
    assert torch.equal(after, files.load(range(5)))


def test_a_cache_that_cannot_be_written_costs_a_warning(files: FilePixels, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    wanted = files.load(range(5))
    for read in (files.load_all, lambda: files.contents([1, 2])):
        with pytest.warns(UserWarning, match="images are not cached: .*SWEEN_CACHE") as warned:
            read()
        assert len(warned) == 1
    assert torch.equal(files.load(range(5)), wanted)


def test_a_damaged_file_is_named_and_nothing_is_kept(files: FilePixels, cache: Path) -> None:
    (files.folder / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"3\.png"):
        files.load_all()
    assert not cache.exists()


def test_images_asked_for_one_by_one_are_decoded_once(
    files: FilePixels, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = files.load([3, 1])
    assert len(list(cache.rglob("*.uint8"))) == 2
    with torch.inference_mode():  # as a network's accuracy is measured
        assert torch.equal(files.load([0]), files.load_all()[:1])
    monkeypatch.setattr(FilePixels, "_read", None)  # would fail if it were asked
    assert torch.equal(files.load([3, 1]), wanted)
    assert files.unreadable([1, 3]) == {}
    assert files.contents([3, 1]) == files.contents([1, 3])
    with pytest.raises(TypeError):
        files.load([2])


def test_a_damaged_entry_is_decoded_again(files: FilePixels, cache: Path) -> None:
    wanted = files.load_all().clone()
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for damage in (b"", whole[:-1]):
        kept.write_bytes(damage)
        assert torch.equal(files.load_all(), wanted)
        assert kept.read_bytes() == whole
    files.load([3])
    (kept,) = cache.rglob("images/*/*.uint8")
    whole = kept.read_bytes()
    for damage in (b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
        kept.write_bytes(damage)
        assert torch.equal(files.load([3]), wanted[3:4])
        assert kept.read_bytes() == whole


def test_what_a_killed_process_left_beside_an_image_goes(files: FilePixels, cache: Path) -> None:
    files.load([3])
    (kept,) = cache.rglob("*.uint8")
    left = kept.with_name(".sween-abcdefgh.tmp")
    left.touch()
    files.load([3])
    assert left.exists(), "nothing was written"
    kept.unlink()
    files.load([3])
    assert not left.exists()


def test_another_folder_of_the_same_names_sizes_and_dates(
    files: FilePixels, tmp_path: Path
) -> None:
    """Dates survive copying, and sizes a changed pixel: neither may stand for the content."""
    folder = tmp_path / "other"
    folder.mkdir()
    for index, name in enumerate(files.names):
        Image.new("RGB", (8, 8), (index, 0, 0)).save(files.folder / name)
        Image.new("RGB", (8, 8), (0, index, 0)).save(folder / name)
        for path in (files.folder / name, folder / name):
            path.write_bytes(path.read_bytes().ljust(100, b"\0"))  # read up to the image's end
            os.utime(path, ns=(1, 1))
    other = FilePixels(folder, files.names, 8)
    assert other.fingerprint() == files.fingerprint()
    for read in (lambda pixels: pixels.load(range(5)), FilePixels.load_all):
        assert [read(one)[4, :, 0, 0].tolist() for one in (files, other)] == [[4, 0, 0], [0, 4, 0]]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SWEEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sween"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sween"
