"""Image files decoded once and kept in the cache folder for next time.

A split that is trained on is one large entry, mapped into memory. Images that are asked for one by
one, as certifying does, have an entry each: of ImageNet's 50,000 test images only those that are
certified are ever decoded, and none of them stays in memory.
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
from sween.progress import track
from sween.run_folder import atomic_path
from sween.version import __version__

CACHE_VARIABLE = "SWEEN_CACHE"
"""Environment variable that names another cache folder."""

CHUNK = 256
"""Images decoded between two notes of progress."""

DECODER = f"sween {__version__}, Pillow {PIL.__version__}"
"""What made the pixels of a file: part of every key."""

_CHECKSUM_BYTES = 16


def cache_folder() -> Path:
    """$SWEEN_CACHE, or sween in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sween"


def decoded_once(
    key: str, count: int, shape: tuple[int, int, int], read: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    """uint8 (count, *shape), from the cache folder where it is, else decoded and put there.

    A cache folder that cannot be written costs a warning and the time to decode again.

    Args:
        key: names these pixels, whatever they were decoded from.
        count: images.
        shape: (C, H, W) of each.
        read: decodes the image at a position; called from several threads.
    """
    size = count * torch.Size(shape).numel()
    name = hashlib.sha256(f"{key} {count} {shape} {DECODER}".encode()).hexdigest()
    path = cache_folder() / f"{name[:32]}.uint8"
    if path.is_file() and path.stat().st_size == size:
        # Mapped: read when used, and shared by all processes that use it.
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(
            count, *shape
        )
    pixels = _decode(count, shape, read)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)  # a killed process may have left gigabytes
        with atomic_path(path) as temporary:
            pixels.numpy().tofile(temporary)
    except OSError as error:
        _warn_not_kept(path.parent, error.strerror or error)
    return pixels


def kept_image(
    key: str, shape: tuple[int, int, int], decode: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """uint8 of `shape`, from the cache folder where it is, else decoded and put there.

    May be called from several threads, where a warning could get lost: `check_cache` says whether
    entries can be written.

    Args:
        key: names the file's bytes and the options of `decode`. Not its name, size and date, which
            can be those of another image: then another image would be certified.
        shape: (C, H, W).
        decode: decodes the bytes.
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
    """Warn where decoded images cannot be kept."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _warn_not_kept(folder, error.strerror or error)
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        _warn_not_kept(folder, "it may not be written")


def _checksum(stored: bytes) -> bytes:
    return hashlib.blake2b(stored, digest_size=_CHECKSUM_BYTES).digest()


def _warn_not_kept(folder: Path, why: object) -> None:
    warnings.warn(
        f"decoded images are not kept: {folder}: {why}; set {CACHE_VARIABLE} to a folder with room",
        stacklevel=3,
    )


def _decode(
    count: int, shape: tuple[int, int, int], read: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    pixels = np.empty((count, *shape), dtype=np.uint8)

    def fill(position: int) -> None:
        pixels[position] = read(position).numpy()

    in_threads(fill, count, quiet=count <= CHUNK)
    return torch.from_numpy(pixels)


def in_threads(work: Callable[[int], None], count: int, *, quiet: bool = True) -> None:
    """`work` of each number below `count`, in several threads.

    What it raises is raised here. Inference mode does not reach into the threads: tensors made
    outside cannot be filled there, arrays can.
    """
    with (
        track("decode images", count, quiet=quiet) as advance,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        for start in range(0, count, CHUNK):
            part = range(start, min(start + CHUNK, count))
            list(pool.map(work, part))  # a file that cannot be decoded raises here
            advance(len(part), "")
