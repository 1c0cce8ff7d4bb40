"""The indices of a classifier's images, which are the keys of their noise."""

import hashlib
import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import cast

import torch

from sween.data.validation import check_indices
from sween.errors import RepeatedNoiseWarning

MOST_REMEMBERED = 1_000_000
"""Noise keys whose images are remembered; beyond them the oldest are forgotten."""

LARGEST_NUMBERED = 2**62
"""Numbering continues after an index below it; noise keys end at 2**63."""


class ImageNumbering:
    """Numbers images consecutively across calls, and knows which image each noise key has met.

    The noise of an image is keyed by seed, purpose and index. Batches that each began at 0 would
    all have the same noise, and what is averaged over them would rest on far fewer independent
    draws than it seems to.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._met: dict[tuple[int, str, int], bytes] = {}

    def number(self, purpose: str, indices: Sequence[int] | int | None, count: int) -> list[int]:
        """The indices that were given, checked; else the next ones after all so far."""
        first = self._next.get(purpose, 0)
        keys = (
            list(range(first, first + count)) if indices is None else check_indices(indices, count)
        )
        if max(keys) < LARGEST_NUMBERED:  # else a caller's own scheme, after which nothing follows
            self._next[purpose] = max(first, max(keys) + 1)
        return keys

    def watch(self, seed: int, purpose: str, keys: Sequence[int], images: torch.Tensor) -> None:
        """Warn where a seed, purpose and index that were used before meet another image."""
        repeated = []
        for key, pixels in zip(keys, images.detach().cpu().contiguous().numpy(), strict=True):
            content = hashlib.blake2b(pixels.tobytes(), digest_size=8).digest()
            if self._met.setdefault((seed, purpose, key), content) != content:
                repeated.append(key)
        while len(self._met) > MOST_REMEMBERED:
            del self._met[next(iter(self._met))]
        if repeated:
            warnings.warn(
                f"index {repeated[0]} at seed {seed} was another image before, and has the same "
                "noise again; pass other indices or another seed, unless the images are to be "
                "compared under common noise",
                RepeatedNoiseWarning,
                stacklevel=_depth(),
            )


def _depth() -> int:
    """How many frames lie between the caller of this function and the caller of sween."""
    depth, frame = 1, cast(FrameType | None, sys._getframe(1))
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sween."):
        depth, frame = depth + 1, frame.f_back
    return depth
