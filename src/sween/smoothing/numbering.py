"""Numbers a classifier's images; the numbers are the keys of their noise."""

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
"""The most noise keys whose images are remembered; then the oldest are forgotten."""

LARGEST_NUMBERED = 2**62
"""Numbering continues after indices below this; noise keys end at 2**63."""


class ImageNumbering:
    """Numbers images consecutively across calls, and remembers the image of each noise key.

    The noise of an image is keyed by seed, purpose and index. If every batch started at 0, all
    batches would share their noise, and averages over them would rest on far fewer independent
    draws than it seems.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._met: dict[tuple[int, str, int], bytes] = {}

    def number(self, purpose: str, indices: Sequence[int] | int | None, count: int) -> list[int]:
        """The given indices, checked; by default the next ones after all previous ones."""
        first = self._next.get(purpose, 0)
        keys = (
            list(range(first, first + count)) if indices is None else check_indices(indices, count)
        )
        if max(keys) < LARGEST_NUMBERED:  # otherwise the caller's own scheme
            self._next[purpose] = max(first, max(keys) + 1)
        return keys

    def watch(self, seed: int, purpose: str, keys: Sequence[int], images: torch.Tensor) -> None:
        """Warn if a seed, purpose and index were used before with a different image."""
        repeated = []
        for key, pixels in zip(keys, images.detach().cpu().contiguous().numpy(), strict=True):
            content = hashlib.blake2b(pixels.tobytes(), digest_size=8).digest()
            if self._met.setdefault((seed, purpose, key), content) != content:
                repeated.append(key)
        while len(self._met) > MOST_REMEMBERED:
            del self._met[next(iter(self._met))]
        if repeated:
            warnings.warn(
                f"index {repeated[0]} with seed {seed} was used before for another image, so both "
                "get the same noise; pass other indices or another seed, unless you compare "
                "images under common noise",
                RepeatedNoiseWarning,
                stacklevel=_depth(),
            )


def _depth() -> int:
    """Frames between the caller of this function and the caller of sween."""
    depth, frame = 1, cast(FrameType | None, sys._getframe(1))
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sween."):
        depth, frame = depth + 1, frame.f_back
    return depth
