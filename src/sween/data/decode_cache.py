"""A cache on disk of decoded image files.

A split to train on is one large entry, decoded straight to disk and memory-mapped, or read by
batches where it is larger than memory. Images that are loaded one by one, as in certification, have
an entry each: of ImageNet's 50,000 test images only those that are certified are ever decoded, and
none of them stays in memory.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import hashlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL
import torch

from sween.data.dataset import StoredPixels, stream_above
from sween.data.read_ahead import CHUNK, chunks, read_ahead
from sween.errors import BadInput, DataError, FolderBusy
from sween.locks import FolderLock, remove_leftovers
from sween.paths import CACHE_VARIABLE, cache_folder
from sween.progress import track
from sween.run_folder import atomic_path, write_text
from sween.version import __version__

DECODER = f"sween {__version__}, Pillow {PIL.__version__}"
"""Versions of the decoder, part of every key."""

_CHECKSUM_BYTES = 16
_BUILDING = ".building"
_SECONDS_BETWEEN_LOOKS = 0.2


class DecodedImages(Protocol):
    """Decoded images: a file of the cache, or a tensor where the cache cannot be used."""

    def load(self, positions: Sequence[int]) -> torch.Tensor: ...

    def load_all(self) -> torch.Tensor: ...


@dataclasses.dataclass(frozen=True)
class DecodedFile:
    """A file of `count` decoded images, uint8, one after the other."""

    path: Path
    count: int
    shape: tuple[int, int, int]

    @property
    def image_bytes(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def size(self) -> int:
        return self.count * self.image_bytes

    def is_complete(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.size

    def load_all(self) -> torch.Tensor:
        """Memory-mapped: read on demand, and shared between processes."""
        pixels = torch.from_file(str(self.path), shared=False, size=self.size, dtype=torch.uint8)
        return pixels.view(self.count, *self.shape)

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        """Read, not mapped: pages of a mapping count as memory of the process once touched."""
        pixels = np.empty((len(positions), *self.shape), dtype=np.uint8)
        with self.path.open("rb", buffering=0) as stream:
            for row, position in zip(pixels, positions, strict=True):
                stream.seek(position * self.image_bytes)
                if stream.readinto(row.data) != self.image_bytes:
                    raise DataError(
                        self.path,
                        expected=f"{self.size} bytes, as it had",
                        got=self.path.stat().st_size,
                        fix="delete it and run the command again",
                    )
        return torch.from_numpy(pixels)


def decode_all_cached(
    key: str, count: int, shape: tuple[int, int, int], read: Callable[[int], torch.Tensor]
) -> DecodedImages:
    """uint8 (count, *shape), from the cache, or decoded by `read` and added under this key.

    Of several processes that start together one decodes, and the others wait for it; if it is
    killed, one of them continues. Images are decoded in parallel and appended to a file that gets
    its name when it is complete; no more than a few hundred are in memory. If the cache cannot
    be written, this warns and decodes into memory.

    Raises:
        DataError: an image cannot be decoded, or the cache cannot be written and the images are too
            many for memory (`stream_above`).
    """
    name = hashlib.sha256(f"{key} {count} {shape} {DECODER}".encode()).hexdigest()
    file = DecodedFile(cache_folder() / f"{name[:32]}.uint8", count, shape)
    try:
        _build(file, read)
    except OSError as error:
        if file.size > stream_above():
            raise DataError(
                cache_folder(),
                expected=f"{file.size / 1e9:.1f} GB for the decoded images, too many for memory",
                got=error.strerror or error,
                fix=f"free some space, or set {CACHE_VARIABLE} to a folder on a larger disk",
            ) from error
        _warn_not_cached(cache_folder(), error.strerror or error)
        return StoredPixels(decode_many(count, shape, read, quiet=count <= CHUNK))
    return file


def _build(file: DecodedFile, read: Callable[[int], torch.Tensor]) -> None:
    """Decode all images into the file, unless it is complete or another process does so."""
    if file.is_complete():
        return
    folder = file.path.with_suffix(_BUILDING)
    part = dataclasses.replace(file, path=folder / "pixels")
    with _build_lock(file, folder) as ours:
        if not ours:
            return
        _remove_abandoned(file.path.parent)
        try:
            _append_missing(part, read)
        except Exception:  # a killed or interrupted build is continued; this one would fail again
            part.path.unlink(missing_ok=True)
            raise
        try:
            part.path.replace(file.path)
        except FileNotFoundError:
            if not file.is_complete():  # else another machine was faster
                raise
        with contextlib.suppress(OSError):  # the lock may be a file there, or another machine's
            folder.rmdir()


@contextlib.contextmanager
def _build_lock(file: DecodedFile, folder: Path) -> Iterator[bool]:
    """Whether this process is to build the file; if another one does, waits for it."""
    waiting = False
    while True:
        try:
            lock = FolderLock(folder)
            break
        except FolderBusy:
            if not waiting:
                sys.stderr.write(
                    f"sween: waiting for another process, which decodes these {file.count} images "
                    f"into {file.path.parent}\n"
                )
            waiting = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        except BadInput as error:  # a file system without locks
            raise OSError(errno.ENOLCK, str(error)) from error
    with lock:
        yield not file.is_complete()


def _append_missing(part: DecodedFile, read: Callable[[int], torch.Tensor]) -> None:
    """Decode the images that a file does not have yet; one that is only begun is written again.

    Writes, not a mapping: on a full disk a write fails with an error, a mapping kills the process.
    Not by appending: the locks of some shared file systems hold on one machine only, and another
    machine must write each image to the same place.
    """
    part.path.touch()
    with part.path.open("r+b", buffering=0) as stream:
        first = min(stream.seek(0, os.SEEK_END) // part.image_bytes, part.count)
        stream.seek(first * part.image_bytes)
        missing = (part.count - first) * part.image_bytes
        if shutil.disk_usage(part.path.parent).free < missing:  # known now, not after hours
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        parts = chunks(first, part.count, part.image_bytes)

        def decode(positions: range) -> torch.Tensor:
            return decode_many(len(positions), part.shape, lambda row: read(positions[row]))

        with (
            track("decode images", part.count - first, quiet=part.count <= CHUNK) as advance,
            contextlib.closing(read_ahead(decode, parts)) as decoded,
        ):
            for pixels in decoded:
                _write_all(stream.fileno(), pixels)
                advance(len(pixels), "")
        os.fsync(stream.fileno())


def _write_all(descriptor: int, pixels: torch.Tensor) -> None:
    left = pixels.numpy().reshape(-1).data
    while left:
        left = left[os.write(descriptor, left) :]


def _remove_abandoned(cache: Path) -> None:
    """Remove what killed builds of other images left; it may be many gigabytes."""
    remove_leftovers(cache)
    for folder in cache.glob(f"*{_BUILDING}"):
        with contextlib.suppress(OSError, BadInput), FolderLock(folder):  # busy: still being built
            shutil.rmtree(folder)


def decode_cached(
    key: str, shape: tuple[int, int, int], decode: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """uint8 of `shape`, from the cache, or decoded and added to it.

    May be called from several threads, where a warning could get lost: `check_cache` warns if
    entries cannot be written. The key must identify the file's bytes and the options of `decode`:
    name, size and date could match another image, which would then be certified instead.
    """
    name = hashlib.sha256(f"{key} {shape} {DECODER}".encode()).hexdigest()
    path = cache_folder() / "images" / name[:2] / f"{name[2:34]}.uint8"
    try:
        entry = path.read_bytes()
    except OSError:
        entry = b""
    stored = entry[:-_CHECKSUM_BYTES]
    if len(stored) == torch.Size(shape).numel() and _checksum(stored) == entry[-_CHECKSUM_BYTES:]:
        return torch.frombuffer(bytearray(stored), dtype=torch.uint8).view(shape)
    pixels = decode()
    stored = pixels.numpy().tobytes()
    remove_leftovers(path.parent)  # of a killed process
    with contextlib.suppress(OSError), atomic_path(path) as temporary:
        temporary.write_bytes(stored + _checksum(stored))
    return pixels


def cached_text(key: str, make: Callable[[], str]) -> str:
    """A short text from the cache, or made and added to it under this key."""
    name = hashlib.sha256(f"{key} {DECODER}".encode()).hexdigest()
    path = cache_folder() / f"{name[:32]}.txt"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii")
    text = make()
    with contextlib.suppress(OSError):
        write_text(path, text)
    return text


def check_cache() -> None:
    """Warn if decoded images cannot be cached."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _warn_not_cached(folder, error.strerror or error)
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        _warn_not_cached(folder, "permission denied")


def _checksum(stored: bytes) -> bytes:
    return hashlib.blake2b(stored, digest_size=_CHECKSUM_BYTES).digest()


def _warn_not_cached(folder: Path, why: object) -> None:
    warnings.warn(
        f"decoded images are not cached: {folder}: {why}; set {CACHE_VARIABLE} to a usable folder",
        stacklevel=3,
    )


def decode_many(
    count: int,
    shape: tuple[int, int, int],
    read: Callable[[int], torch.Tensor],
    *,
    quiet: bool = True,
) -> torch.Tensor:
    """uint8 (count, *shape): `read` decodes each image, in several threads."""
    # Inference mode is per thread: a thread may fill a numpy array, but not a tensor made here.
    pixels = np.empty((count, *shape), dtype=np.uint8)

    def fill(position: int) -> None:
        pixels[position] = read(position).numpy()

    in_threads(fill, count, quiet=quiet)
    return torch.from_numpy(pixels)


def in_threads(work: Callable[[int], None], count: int, *, quiet: bool = True) -> None:
    """Call `work` with each number below `count`, in several threads, and raise what it raises."""
    with (
        track("decode images", count, quiet=quiet) as advance,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        for start in range(0, count, CHUNK):
            part = range(start, min(start + CHUNK, count))
            list(pool.map(work, part))  # a file that cannot be decoded raises here
            advance(len(part), "")
