"""CIFAR-10 as its authors publish it: seven pickles, in a folder or in the tar archive."""

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
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
BATCH_SIZE = 10_000
TRAIN_SIZE = 48_000
"""The first 48,000 images train; the last 2,000 solve the ensemble's weights."""
_SHAPE = (3, 32, 32)
_FIX = f"fetch {ARCHIVE} again from its source"
_LARGEST_MEMBER = 64 * 2**20
"""Twice the largest published file: a tar that claims more is not read into memory."""


def load_cifar10(root: AnyPath) -> Dataset:
    """CIFAR-10, every file checked against its published md5 before it is read.

    Args:
        root: the folder `cifar-10-batches-py`, the archive `cifar-10-python.tar.gz`, or a folder
            that holds either. The archive is read in place; nothing is unpacked to disk.

    Returns:
        48,000 training images, 2,000 for the weights, 10,000 test images in their published order.

    Raises:
        DataError: a file is missing, truncated or altered.
    """
    root = Path(root)
    source = _find_source(root)
    batches = dict[str, tuple[torch.Tensor, torch.Tensor]]()
    class_names: tuple[str, ...] = ()
    # The tar has the files in some other order, so each is placed by its name.
    for name, content in _read_files(source):
        value = _read_checked(name, content, source / name)
        if name == "batches.meta":
            class_names = _class_names(value, source / name)
        else:
            batches[name] = _batch(value, source / name)
    missing = PUBLISHED_MD5.keys() - batches.keys() - ({"batches.meta"} if class_names else set())
    if missing:
        raise DataError(source, expected="all seven files", got=f"no {min(missing)}", fix=_FIX)
    parts = [batches[name] for name in TRAIN_BATCHES]
    train = torch.cat([pixels for pixels, _ in parts])
    labels = torch.cat([classes for _, classes in parts])
    test, test_labels = batches["test_batch"]
    return Dataset(
        name="cifar10",
        class_names=class_names,
        image_shape=_SHAPE,
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
        if root.name == FOLDER or any((root / name).is_file() for name in TRAIN_BATCHES):
            return root
        if (root / FOLDER).is_dir():
            return root / FOLDER
        if (root / ARCHIVE).is_file():
            return root / ARCHIVE
    raise DataError(
        root,
        expected=f"{FOLDER}/ or {ARCHIVE}",
        got="a folder with neither" if root.is_dir() else "nothing there",
        fix=f"fetch {ARCHIVE} from its source and pass its folder as --data-root",
    )


def _read_files(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_file():
        yield from _read_archive(source)
        return
    for name in PUBLISHED_MD5:
        path = source / name
        try:
            content = path.read_bytes()
        except OSError as error:
            got = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise DataError(path, expected="a file of CIFAR-10", got=got, fix=_FIX) from error
        yield name, content


def _read_archive(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.parent.name == FOLDER and path.name in PUBLISHED_MD5:
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
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != PUBLISHED_MD5[name]:
        raise DataError(
            where,
            expected=f"md5 {PUBLISHED_MD5[name]}",
            got=f"{digest} over {len(content)} bytes: the file is truncated or altered",
            fix=_FIX,
        )
    value = loads_plain(content, str(where))
    if not isinstance(value, dict):
        raise DataError(where, expected="a dictionary", got=type(value).__name__, fix=_FIX)
    return value


def _class_names(value: dict[bytes, Any], where: Path) -> tuple[str, ...]:
    names = value.get(b"label_names")
    if not isinstance(names, list) or len(names) != 10:
        raise DataError(where, expected="ten label_names", got=type(names).__name__, fix=_FIX)
    return tuple(name.decode("ascii") for name in names)


def _batch(value: dict[bytes, Any], where: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The pixels and labels of one file."""
    data, classes = value.get(b"data"), value.get(b"labels")
    shape = (BATCH_SIZE, int(np.prod(_SHAPE)))
    if not isinstance(data, np.ndarray) or data.shape != shape or data.dtype != np.uint8:
        got = f"{getattr(data, 'dtype', type(data).__name__)} {getattr(data, 'shape', '')}"
        raise DataError(where, expected=f"uint8 pixels of shape {shape}", got=got, fix=_FIX)
    if not isinstance(classes, list) or len(classes) != BATCH_SIZE:
        got = str(len(classes)) if isinstance(classes, list) else type(classes).__name__
        raise DataError(where, expected=f"{BATCH_SIZE} labels", got=got, fix=_FIX)
    pixels = torch.tensor(np.asarray(data)).view(BATCH_SIZE, *_SHAPE)
    return pixels, torch.tensor(classes, dtype=torch.long)
