"""CIFAR-10 as published: folder or tar.gz, checked, never trusted."""

import gzip
import hashlib
import io
import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sween.data import cifar10, load_dataset
from sween.data.cifar10 import ARCHIVE, FOLDER, PUBLISHED_MD5, load_cifar10
from sween.data.dataset import Dataset
from sween.errors import DataError

from .conftest import Refuses

FETCH = f"fetch {ARCHIVE} again from its source"


@pytest.fixture(scope="module")
def dataset(cifar_folder: Path) -> Dataset:
    return load_cifar10(cifar_folder)


def test_splits_and_labels(dataset: Dataset, cifar_folder: Path) -> None:
    assert (dataset.name, dataset.root) == ("cifar10", cifar_folder)
    assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
    assert dataset.class_names[-1] == "truck"
    assert (dataset.augmentation, dataset.crop_padding) == ("crop-flip", 4)
    splits = (dataset.train, dataset.weights, dataset.test)
    assert [len(split) for split in splits] == [48_000, 2_000, 10_000]
    assert torch.bincount(dataset.test.labels).tolist() == [1000] * 10
    both = torch.cat([dataset.train.labels, dataset.weights.labels])
    assert torch.bincount(both).tolist() == [5000] * 10
    names = [dataset.class_names[label] for label in dataset.test.labels[:5]]
    assert names == ["cat", "ship", "ship", "airplane", "frog"]
    assert dataset.test.pixels.load([0])[0, :, 0, 0].tolist() == [158, 112, 49]


def test_pixels_are_the_published_ones_in_order(dataset: Dataset, cifar_folder: Path) -> None:
    # An independent way in: the pixel bytes lie in one piece in each file.
    for name, split, start in (
        ("data_batch_1", dataset.train, 0),
        ("data_batch_4", dataset.train, 30_000),
        ("test_batch", dataset.test, 0),
    ):
        stored = split.pixels.load(range(start, start + 10_000)).numpy().tobytes()
        assert stored in (cifar_folder / name).read_bytes()


def test_the_training_mean_is_the_published_one(dataset: Dataset) -> None:
    pixels = dataset.train.images(range(0, 48_000, 10))
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx(dataset.mean, abs=0.005)


def test_the_splits_share_no_image(dataset: Dataset) -> None:
    def content(split: Any) -> set[bytes]:
        images = split.pixels.load(range(len(split))).numpy()
        return {hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images}

    splits = [content(split) for split in (dataset.train, dataset.weights, dataset.test)]
    assert len(set.union(*splits)) == 60_000


def test_the_archive_gives_the_same_data(dataset: Dataset, cifar_archive: Path) -> None:
    read = load_cifar10(cifar_archive.parent)
    for split in ("train", "weights", "test"):
        ours, theirs = getattr(read, split), getattr(dataset, split)
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.pixels.tensor, theirs.pixels.tensor)
    assert read.class_names == dataset.class_names
    assert os.listdir(cifar_archive.parent) == [ARCHIVE]


def test_the_test_images_need_no_files_of_the_others(
    dataset: Dataset, cifar_folder: Path, cifar_archive: Path, tmp_path: Path
) -> None:
    for name in ("batches.meta", "test_batch"):
        shutil.copy(cifar_folder / name, tmp_path)
    for root in (tmp_path, cifar_archive):
        alone = load_dataset("cifar10", root, test_only=True)
        assert (len(alone.train), len(alone.weights)) == (0, 0)
        assert torch.equal(alone.test.labels, dataset.test.labels)
        assert alone.test.pixels.fingerprint() == dataset.test.pixels.fingerprint()
    with pytest.raises(DataError, match="data_batch_1"):
        load_cifar10(tmp_path)


def test_an_altered_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    small_cifar(tmp_path / FOLDER, monkeypatch)
    for name, keep in (("batches.meta", None), ("data_batch_1", 1000)):
        path = tmp_path / FOLDER / name
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[50] ^= 1
        path.write_bytes(whole[:keep] if keep else flipped)
        size = f"over {keep or len(whole)} bytes"
        with refuses(DataError, name, size, "truncated or altered", FETCH):
            load_cifar10(tmp_path)
        path.write_bytes(whole)


def test_a_missing_or_unreadable_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    small_cifar(tmp_path / FOLDER, monkeypatch)
    name = "data_batch_4"
    path = tmp_path / FOLDER / name
    path.unlink()
    with refuses(DataError, f"{FOLDER}/{name}", "no such file", FETCH):
        load_cifar10(tmp_path)
    path.mkdir()
    with refuses(DataError, f"{FOLDER}/{name}", "directory", FETCH):
        load_cifar10(tmp_path)


def test_a_folder_without_cifar10(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(DataError, str(tmp_path), "neither", "as `root`"):
        load_cifar10(tmp_path)
    with refuses(DataError, "absent", "nothing there", "as `root`"):
        load_cifar10(tmp_path / "absent")


def small_cifar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven files of four images each, whose md5 are taken for the published ones."""
    folder.mkdir()
    for number, name in enumerate(PUBLISHED_MD5):
        value: Any = {
            b"data": np.full((4, 3072), number, np.uint8),
            b"labels": [number] * 4,
            b"label_names": [b"a"] * 10,
        }
        content = pickle.dumps(value, 3)
        (folder / name).write_bytes(content)
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(PUBLISHED_MD5, name, digest)


def test_batches_are_placed_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cifar(tmp_path / FOLDER, monkeypatch)
    monkeypatch.setattr(cifar10, "TRAIN_SIZE", 18)
    read = load_cifar10(tmp_path)
    assert read.train.labels.tolist() == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 2
    assert read.weights.labels.tolist() == [5, 5]
    assert read.test.labels.tolist() == [6] * 4
    assert (read.test.all_images() == torch.tensor(6.0) / 255).all()


@pytest.mark.parametrize(
    ("changes", "content", "part"),
    [
        ({"type": tarfile.SYMTYPE, "linkname": "../elsewhere"}, b"", "a link or device"),
        ({"size": 11}, b"x" * 11, "11 bytes"),
    ],
)
def test_a_link_or_oversized_member_is_refused(
    changes: dict[str, Any],
    content: bytes,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    monkeypatch.setattr(cifar10, "_LARGEST_MEMBER", 10)
    member = tarfile.TarInfo(f"{FOLDER}/data_batch_1")
    for name, value in changes.items():
        setattr(member, name, value)
    with tarfile.open(tmp_path / ARCHIVE, "w:gz", compresslevel=1) as tar:
        tar.addfile(member, io.BytesIO(content))
    with refuses(DataError, f"{FOLDER}/data_batch_1", part, FETCH):
        load_cifar10(tmp_path)


def test_an_incomplete_archive_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    small_cifar(tmp_path / "files", monkeypatch)
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        for name in PUBLISHED_MD5:
            if name != "data_batch_4":
                tar.add(tmp_path / "files" / name, arcname=f"./{FOLDER}/{name}")
    with refuses(DataError, ARCHIVE, "no data_batch_4", FETCH):
        load_cifar10(tmp_path)


def test_a_damaged_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    small_cifar(tmp_path / "files", monkeypatch)
    whole = tmp_path / "whole.tar.gz"
    with tarfile.open(whole, "w:gz") as tar:
        tar.add(tmp_path / "files", arcname=FOLDER)
    content = whole.read_bytes()
    cuts = [content[:kept] for kept in (0, 5, 200, len(content) // 2)]
    for damaged in (*cuts, b"plain text", gzip.compress(b"not a tar" * 100)):
        (tmp_path / ARCHIVE).write_bytes(damaged)
        with refuses(DataError, ARCHIVE, "a readable tar.gz", "truncated or altered", FETCH):
            load_cifar10(tmp_path / ARCHIVE)
