"""Everything random in sween is keyed by (seed, purpose, example, block), never by global state.

Draws with different keys come from independent streams; a key always gives the same draw, whatever
the worker, batch size or order. Keys are 128 bits of BLAKE2b, so the streams of a run do not
collide. torch's CPU generator keeps only 32 bits of its seed: over the thousand noise blocks of a
certificate that would repeat a block in about one of eight thousand images, and a repeated block
breaks the independence that every confidence bound here relies on. Hence the CPU uses numpy's
counter-based Philox with the full key, and the GPU uses Philox in torch operations, also with the
full key. CPUs and GPUs draw different noise.
"""

import hashlib
import secrets
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from sween.errors import BadInput
from sween.philox import counters, normal_draws, stream_words

Normals = Callable[[Sequence[int], tuple[int, ...], torch.device], torch.Tensor]
"""Draws N(0, 1) from several streams; see `normals_of`."""

NOISE_BLOCK = 100
"""Noise vectors per key; every count depends on it, so changing it changes results."""


def fresh_seed() -> int:
    """An unpredictable seed from the operating system.

    53 bits, so that every JSON parser reads it exactly.
    """
    return secrets.randbits(53)


def derive_key(seed: int, purpose: str, example: int = 0, block: int = 0) -> int:
    """The 128-bit key of a stream."""
    try:
        numbers = struct.pack("<qqq", seed, example, block)
    except struct.error:
        raise BadInput(
            "seed, example and block of a random stream: expected integers from -2**63 to 2**63 - "
            f"1, got {seed}, {example}, {block}; choose a smaller seed"
        ) from None
    hasher = hashlib.blake2b(digest_size=16, person=b"sween-stream-1")
    hasher.update(numbers)
    hasher.update(purpose.encode())
    return int.from_bytes(hasher.digest(), "little")


def numpy_generator(
    seed: int, purpose: str, example: int = 0, block: int = 0
) -> np.random.Generator:
    """A numpy generator for one stream."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, purpose, example, block)))


def torch_seed(seed: int, purpose: str, example: int = 0, block: int = 0) -> int:
    """A 63-bit seed for `torch.Generator.manual_seed`.

    For initialisation, shuffling and the like. Not for certification noise, since on a CPU torch
    keeps only 32 bits of it: use `standard_normal`.
    """
    return derive_key(seed, purpose, example, block) & (2**63 - 1)


def standard_normal(
    shape: tuple[int, ...],
    *,
    seed: int,
    purpose: str,
    example: int,
    block: int,
    device: torch.device,
) -> torch.Tensor:
    """Independent float32 N(0, 1) draws from one stream, the same on every call with that key."""
    return normals_of([derive_key(seed, purpose, example, block)], shape, device)[0]


def normals_of(keys: Sequence[int], shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """float32 N(0, 1) draws from several streams, given by their keys: (len(keys), *shape)."""
    if device.type == "cpu":
        draws = np.empty((len(keys), *shape), dtype=np.float32)
        for draw, key in zip(draws, keys, strict=True):
            _PHILOX.restart(key).standard_normal(dtype=np.float32, out=draw)
        return torch.from_numpy(draws)
    return philox_normals(keys, shape, device)


class _Philox(threading.local):
    """A generator of this thread, restarted for each key.

    Making `np.random.Philox(key=key)` anew gives the same draws, but also reads the operating
    system's entropy, which takes longer than drawing a block of small images.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._start = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def restart(self, key: int) -> np.random.Generator:
        self._start["state"]["key"][:] = key & (2**64 - 1), key >> 64
        self._bits.state = self._start
        return self._generator


_PHILOX = _Philox()


def philox_normals(
    keys: Sequence[int],
    shape: tuple[int, ...],
    device: torch.device,
    draw: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = normal_draws,
) -> torch.Tensor:
    """`normals_of` by Philox in torch operations, as used on a GPU.

    Args:
        keys: of the streams.
        shape: of each stream's draws.
        device: any.
        draw: `normal_draws`, or its compiled form.
    """
    count = torch.Size(shape).numel()
    draws = draw(stream_words(keys, device), counters(count, device))
    return draws[:, :count].reshape(len(keys), *shape)


def noise_blocks(n: int) -> Iterator[tuple[int, int]]:
    """The blocks needed for n noise draws: (block, how many of its draws are used)."""
    for block in range(-(-n // NOISE_BLOCK)):
        yield block, min(NOISE_BLOCK, n - block * NOISE_BLOCK)


def noisy_copies(
    images: torch.Tensor, keys: Sequence[int], *, sigma: float, normals: Normals | None = None
) -> torch.Tensor:
    """One block of noisy copies of each image: (len(images) * NOISE_BLOCK, C, H, W).

    Args:
        images: (N, C, H, W).
        keys: N noise streams, one per image.
        sigma: noise level.
        normals: draws the noise; `normals_of` by default.
    """
    noise = (normals or normals_of)(keys, (NOISE_BLOCK, *images.shape[1:]), images.device)
    return noise.mul_(sigma).add_(images[:, None]).flatten(0, 1)
