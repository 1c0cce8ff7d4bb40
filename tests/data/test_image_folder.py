"""Folders laid out like ImageNet: listed at once, decoded on demand, never quietly skipped."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data.dataset import Dataset, Split
from sween.data.image_folder import FilePixels, load_image_folder
from sween.data.splits import held_out_count
from sween.errors import BadInput, DataError
from sween.training import TrainConfig, train, train_many

from .conftest import IMAGENETTE_CLASSES, IMAGENETTE_FILES, Refuses


def save(path: Path, value: int = 0, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (8, 8, 3) if mode == "RGB" else (8, 8)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes, five training images and two test images each."""
    for number, label in enumerate(("cat", "dog")):
        for index in range(5):
            save(tmp_path / "train" / label / f"{index}.png", 10 * number + index)
        for index in range(2):
            save(tmp_path / "val" / label / f"{index}.png", 100 + 10 * number + index)
    return tmp_path


def names(split: Split) -> tuple[str, ...]:
    assert isinstance(split.pixels, FilePixels)
    return split.pixels.names


def test_splits_and_labels(root: Path) -> None:
    read = load_image_folder(root, image_size=16)
    assert (read.name, read.class_names) == ("image_folder", ("cat", "dog"))
    assert read.image_shape == (3, 16, 16)
    assert (read.augmentation, read.crop_padding, read.root) == ("crop-flip", 2, root)
    assert (read.mean, read.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    train = [f"{label}/{index}.png" for label in ("cat", "dog") for index in range(4)]
    assert names(read.train) == tuple(train)
    assert names(read.weights) == ("cat/4.png", "dog/4.png")
    assert names(read.test) == ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")
    assert read.train.labels.tolist() == [0] * 4 + [1] * 4
    assert read.weights.labels.tolist() == [0, 1]
    assert read.test.labels.tolist() == [0, 0, 1, 1]
    assert [len(split.pixels) for split in (read.train, read.weights, read.test)] == [8, 2, 4]


def test_each_position_is_its_own_file(root: Path) -> None:
    read = load_image_folder(root, image_size=8)
    assert read.test.pixels.load([3, 0])[:, 0, 0, 0].tolist() == [111, 100]
    assert read.weights.pixels.load(range(2))[:, 0, 0, 0].tolist() == [4, 14]
    assert read.test.pixels.load([]).shape == (0, 3, 8, 8)
    images = read.test.images([0])
    assert images.dtype == torch.float32
    assert images.max() == torch.tensor(100.0) / 255


@pytest.mark.parametrize(
    ("images", "classes", "held_out"),
    [(2, 2, 1), (5, 2, 1), (100, 2, 4), (1300, 10, 52), (1300, 1000, 2), (10**6, 2, 1000)],
)
def test_four_percent_are_held_out_up_to_a_limit(images: int, classes: int, held_out: int) -> None:
    assert held_out_count(images, classes) == held_out


def test_suffixes_in_capitals_count_and_hidden_files_do_not(root: Path) -> None:
    save(root / "train" / "cat" / "9.PNG")
    save(root / "train" / "cat" / "9.JpEg")
    for folder in (root / "train", root / "train" / "cat", root / "val" / "dog"):
        (folder / ".DS_Store").write_bytes(b"")
    (root / "train" / ".cache").mkdir()
    read = load_image_folder(root)
    assert len(read.train) + len(read.weights) == 12
    assert read.class_names == ("cat", "dog")


def test_test_images_alone_can_be_certified_but_not_trained_on(
    root: Path, refuses: Refuses
) -> None:
    whole = load_image_folder(root, image_size=8)
    (root / "train" / "stray.txt").write_text("")
    unlisted = load_image_folder(root, image_size=8, test_only=True)
    shutil.rmtree(root / "train")
    for read in (unlisted, load_image_folder(root, image_size=8)):
        assert read.class_names == ("cat", "dog")
        assert names(read.test) == names(whole.test)
        assert torch.equal(read.test.all_images(), whole.test.all_images())
        assert (len(read.train), len(read.weights)) == (0, 0)
        config = TrainConfig(dataset="image_folder", arch="digits-mlp", sigma=0.5)
        with refuses(BadInput, str(root), "training images", "got none", "train/<class>/"):
            train(config, read, root / "run", quiet=True)
        with refuses(BadInput, str(root), "training images", "got none", "train/<class>/"):
            train_many([config] * 2, read, [root / "run", root / "other"], quiet=True)
    assert not (root / "run").exists()


@pytest.mark.parametrize("how", ["altered", "swapped"])
def test_contents_tell_apart_what_names_and_sizes_do_not(how: str, root: Path) -> None:
    before = load_image_folder(root, image_size=8).test
    fingerprint, contents = before.pixels.fingerprint(), before.pixels.contents([0, 2])
    unused = root / "val" / "dog" / "1.png"
    unused.write_bytes(b"x" * unused.stat().st_size)
    assert load_image_folder(root, image_size=8).test.pixels.contents([2, 0]) == contents
    first, other = root / "val" / "cat" / "0.png", root / "val" / "dog" / "0.png"
    if how == "altered":
        save(first, 101)
    else:
        one, two = first.read_bytes(), other.read_bytes()
        first.write_bytes(two)
        other.write_bytes(one)
    after = load_image_folder(root, image_size=8).test
    assert after.pixels.fingerprint() == fingerprint
    assert after.pixels.contents([0, 2]) != contents
    assert after.pixels.contents([0]) != after.pixels.contents([1])
    save(unused)
    everything = load_image_folder(root, image_size=8).test.pixels.contents()
    assert load_image_folder(root, image_size=8).test.pixels.contents() == everything
    save(unused, 99)
    assert load_image_folder(root, image_size=8).test.pixels.contents() != everything
    assert load_image_folder(root, image_size=16).test.pixels.contents([0, 2]) != contents


def test_a_file_that_changes_while_a_run_reads_it(root: Path, refuses: Refuses) -> None:
    pixels = load_image_folder(root, image_size=8).test.pixels
    pixels.contents([0, 1])
    save(root / "val" / "cat" / "1.png", 7)
    save(root / "val" / "dog" / "1.png", 7)
    assert pixels.load([0, 3])[:, 0, 0, 0].tolist() == [100, 7]
    with refuses(DataError, "val/cat/1.png", "when the run began", "restore it"):
        pixels.load([0, 1])


def test_what_cannot_be_read(root: Path, refuses: Refuses) -> None:
    (root / "val" / "cat" / "0.png").write_bytes(b"no photo")
    (root / "val" / "dog" / "0.png").unlink()
    (root / "val" / "dog" / "0.png").symlink_to(root / "nowhere.png")
    pixels = load_image_folder(root, image_size=8).test.pixels
    assert pixels.unreadable([3, 1]) == {}
    found = pixels.unreadable([3, 2, 1, 0])
    assert list(found) == [2, 0]
    assert "val/dog/0.png: expected an image file, got no such file" in str(found[2])
    assert "val/cat/0.png" in str(found[0])
    assert len(pixels.contents([1, 3]) or "") == 64
    with refuses(DataError, "val/dog/0.png", "no such file"):
        pixels.contents([1, 2])
    # An option reads this one: leaving it out would be another test set than it need be.
    save(root / "val" / "cat" / "0.png", 77, mode="L")
    with refuses(DataError, "val/cat/0.png", "grayscale", "convert=True"):
        pixels.unreadable([0])
    converted = load_image_folder(root, image_size=8, convert=True).test.pixels.load([0])
    assert (converted == 77).all()


@pytest.mark.parametrize(
    ("path", "make", "parts"),
    [
        ("train/cat/notes.txt", Path.touch, ("another file", "move it")),
        ("val/labels.csv", Path.touch, ("only class folders", "a file", "move it")),
        ("val/dog/puppies.png", Path.mkdir, ("a folder", "move it")),
        ("val/cat/9.png", os.mkfifo, ("another file",)),
        ("val/emu", Path.mkdir, ("expected images, got none", "remove the folder")),
    ],
)
def test_anything_else_in_the_folder_is_named(
    path: str, make: Callable[[Path], None], parts: tuple[str, ...], root: Path, refuses: Refuses
) -> None:
    make(root / path)
    with refuses(DataError, str(root / path), *parts):
        load_image_folder(root)


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_missing_part_is_named(part: str, root: Path, refuses: Refuses) -> None:
    shutil.rmtree(root / part)
    if part == "val":
        with refuses(DataError, str(root / part), "nothing there", "train/<class>"):
            load_image_folder(root)
    (root / part).touch()
    with refuses(DataError, str(root / part), "a file", "train/<class>"):
        load_image_folder(root)
    (root / part).unlink()
    (root / part).mkdir()
    with refuses(DataError, str(root / part), "an empty folder", "train/<class>"):
        load_image_folder(root)


def test_classes_that_differ_or_are_too_small_are_named(root: Path, refuses: Refuses) -> None:
    (root / "val" / "dog").rename(root / "val" / "fox")
    with refuses(DataError, str(root), "same classes", "got dog only in train, fox only in val;"):
        load_image_folder(root)
    for number in range(9):
        save(root / "train" / f"a{number}" / "0.png")
    with refuses(DataError, "a4 only in train, ..."):
        load_image_folder(root)
    for number in range(9):
        save(root / "val" / f"a{number}" / "0.png")
    (root / "val" / "fox").rename(root / "val" / "dog")
    with refuses(DataError, "train/a0", "2 or more images", "got 1", "add images"):
        load_image_folder(root)


def test_a_folder_that_may_not_be_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    def forbid(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", forbid)
    with refuses(DataError, str(root / "train"), "Permission denied", "change its permissions"):
        load_image_folder(root)


def test_imagenette(imagenette_folder: Path, refuses: Refuses) -> None:
    read: Dataset = load_image_folder(imagenette_folder, image_size=128)
    assert read.class_names == IMAGENETTE_CLASSES
    count = IMAGENETTE_FILES
    assert [len(read.train), len(read.weights), len(read.test)] == [3 * count - 3, 3, 3 * count]
    images = read.test.all_images()
    assert images.shape == (3 * count, 3, 128, 128)
    assert 0 <= images.min() <= images.max() <= 1
    assert images.mean().item() == pytest.approx(0.45, abs=0.1)
    with refuses(BadInput, "image_size", "got 0", "use 224"):
        load_image_folder(imagenette_folder, image_size=0)
