"""CIFAR-10 as its authors publish it: seven pickles, in a folder or in the tar archive."""

import hashlib
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from sween.data.dataset import Dataset, Split, StoredPixels
from sween.data.safe_pickle import loads_plain
from sween.errors import DataError
from sween.paths import AnyPath

FOLDER = "cifar-10-batches-py"
ARCHIVE = "cifar-10-python.tar.gz"
PUBLISHED_MD5 = {
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TRAIN_SIZE = 48_000
"""The first 48,000 images train; the last 2,000 solve the ensemble's weights."""
IMAGE_SHAPE = (3, 32, 32)
CLASS_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_FIX = f"fetch {ARCHIVE} again from its source"
_LARGEST_MEMBER = 64 * 2**20
"""Twice the largest published file: a tar that claims more is not read into memory."""


def load_cifar10(root: AnyPath, *, test_only: bool = False) -> Dataset:
    """CIFAR-10, every file that is read is checked against its published md5 first.

    Args:
        root: the folder `cifar-10-batches-py`, the archive `cifar-10-python.tar.gz`, or a folder
            that holds either. The archive is read in place; nothing is unpacked to disk.
        test_only: leave the training images out; their files need not be there.

    Returns:
        48,000 training images, 2,000 for the weights, 10,000 test images in their published order.

    Raises:
        DataError: a file is missing, truncated or altered.
    """
    root = Path(root)
    source = _find_source(root)
    batches = () if test_only else TRAIN_BATCHES
    wanted = ("batches.meta", *batches, "test_batch")
    files = {
        name: _read_checked(name, content, source / name)
        for name, content in _read_files(source, wanted)
    }
    if missing := set(wanted) - files.keys():
        raise DataError(source, expected=", ".join(wanted), got=f"no {min(missing)}", fix=_FIX)

    def join(*names: str) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = [files[name][b"data"].reshape(-1, *IMAGE_SHAPE) for name in names]
        pixels.append(np.empty((0, *IMAGE_SHAPE), np.uint8))  # of no files, no images
        labels = [label for name in names for label in files[name][b"labels"]]
        return torch.from_numpy(np.concatenate(pixels)), torch.tensor(labels, dtype=torch.long)

    (train, labels), (test, test_labels) = join(*batches), join("test_batch")
    return Dataset(
        name="cifar10",
        class_names=tuple(name.decode() for name in files["batches.meta"][b"label_names"]),
        image_shape=IMAGE_SHAPE,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augmentation="crop-flip",
        train=Split("train", StoredPixels(train[:TRAIN_SIZE]), labels[:TRAIN_SIZE]),
        weights=Split("weights", StoredPixels(train[TRAIN_SIZE:]), labels[TRAIN_SIZE:]),
        test=Split("test", StoredPixels(test), test_labels),
        root=root,
    )


def _find_source(root: Path) -> Path:
    """The folder or archive that holds the seven files."""
    if root.is_file():
        return root
    if root.is_dir():
        if root.name == FOLDER or any((root / name).is_file() for name in PUBLISHED_MD5):
            return root
        if (root / FOLDER).is_dir():
            return root / FOLDER
        if (root / ARCHIVE).is_file():
            return root / ARCHIVE
    raise DataError(
        root,
        expected=f"{FOLDER}/ or {ARCHIVE}",
        got="a folder with neither" if root.is_dir() else "nothing there",
        fix=f"fetch {ARCHIVE} from its source and pass its folder as `root`",
    )


def _read_files(source: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if source.is_file():
        yield from _read_archive(source, wanted)
        return
    for name in wanted:
        path = source / name
        try:
            content = path.read_bytes()
        except OSError as error:
            got = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise DataError(path, expected="a file of CIFAR-10", got=got, fix=_FIX) from error
        yield name, content


def _read_archive(archive: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.parent.name == FOLDER and path.name in wanted:
                    yield path.name, _read_member(tar, member, archive)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            archive, expected="a readable tar.gz", got=f"truncated or altered ({error})", fix=_FIX
        ) from error


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> bytes:
    stream = tar.extractfile(member) if member.isreg() else None
    if stream is None or member.size > _LARGEST_MEMBER:
        got = "a link or device" if stream is None else f"{member.size} bytes"
        raise DataError(archive / member.name, expected="a plain file", got=got, fix=_FIX)
    with stream:
        return stream.read()


def _read_checked(name: str, content: bytes, where: Path) -> dict[bytes, Any]:
    """The content of a file that is the published one, byte for byte."""
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != PUBLISHED_MD5[name]:
        raise DataError(
            where,
            expected=f"md5 {PUBLISHED_MD5[name]}",
            got=f"{digest} over {len(content)} bytes: the file is truncated or altered",
            fix=_FIX,
        )
    value: dict[bytes, Any] = loads_plain(content, str(where))
    return value
