"""A cache on disk of decoded image files.

A split to train on is one large entry, memory-mapped. Images that are loaded one by one, as in
certification, have an entry each: of ImageNet's 50,000 test images only those that are certified
are ever decoded, and none of them stays in memory.
"""

import concurrent.futures
import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch

from sween.locks import remove_leftovers
from sween.paths import CACHE_VARIABLE, cache_folder
from sween.progress import track
from sween.run_folder import atomic_path
from sween.version import __version__

CHUNK = 256
"""Images decoded between two progress updates."""

DECODER = f"sween {__version__}, Pillow {PIL.__version__}"
"""Versions of the decoder, part of every key."""

_CHECKSUM_BYTES = 16


def decode_all_cached(
    key: str, count: int, shape: tuple[int, int, int], read: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    """uint8 (count, *shape), from the cache, or decoded by `read` and added under this key.

    If the cache folder is not writable, this warns and the images are decoded again next time.
    """
    size = count * torch.Size(shape).numel()
    name = hashlib.sha256(f"{key} {count} {shape} {DECODER}".encode()).hexdigest()
    path = cache_folder() / f"{name[:32]}.uint8"
    if path.is_file() and path.stat().st_size == size:
        # Memory-mapped: read on demand, and shared between processes.
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(
            count, *shape
        )
    pixels = decode_many(count, shape, read, quiet=count <= CHUNK)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)  # a killed process may have left gigabytes
        with atomic_path(path) as temporary:
            pixels.numpy().tofile(temporary)
    except OSError as error:
        _warn_not_cached(path.parent, error.strerror or error)
    return pixels


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
