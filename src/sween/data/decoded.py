"""Image files decoded once: the pixels of a whole split, kept in the cache folder for next time."""

import concurrent.futures
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from sween.locks import remove_leftovers
from sween.progress import track
from sween.runs import atomic_path

CACHE_VARIABLE = "SWEEN_CACHE"
"""Environment variable that names another cache folder."""

CHUNK = 256
"""Images decoded between two notes of progress."""


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
    name = hashlib.sha256(f"{key} {count} {shape}".encode()).hexdigest()
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
        warnings.warn(
            f"decoded images are not kept: {path.parent}: {error.strerror or error}; set "
            f"{CACHE_VARIABLE} to a folder with room",
            stacklevel=2,
        )
    return pixels


def _decode(
    count: int, shape: tuple[int, int, int], read: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    pixels = torch.empty((count, *shape), dtype=torch.uint8)

    def fill(position: int) -> None:
        pixels[position] = read(position)

    with (
        track("decode images", count, quiet=count <= CHUNK) as advance,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        for start in range(0, count, CHUNK):
            part = range(start, min(start + CHUNK, count))
            list(pool.map(fill, part))  # a file that cannot be decoded raises here
            advance(len(part), "")
    return pixels
