"""Everything random in sween is keyed by (seed, purpose, example, block), never by global state.

Two draws with different keys come from independent streams; one key always gives the same draw,
whichever worker, batch size or order asked for it. Keys are 128 bits of BLAKE2b, so streams of one
run do not collide: torch's CPU generator keeps only 32 bits of its seed, which over the thousand
noise blocks of one certificate would repeat a block about once in eight thousand images, and a
repeated block breaks the independence that every confidence bound here rests on. Hence the CPU
stream is numpy's counter-based Philox with the full key, and a GPU's is Philox in torch operations,
with the full key too. The two kinds of device draw different noise.
"""

import hashlib
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from sween.errors import BadInput
from sween.philox import counters, normal_draws, stream_words

Normals = Callable[[Sequence[int], tuple[int, ...], torch.device], torch.Tensor]
"""Draws N(0, 1) of several streams: see `normals_of`."""

NOISE_BLOCK = 100
"""Noise vectors drawn per key: part of every result's definition, so changing it changes counts."""


def fresh_seed() -> int:
    """A seed from the operating system, which nobody could have known before.

    53 bits, so that every reader of JSON gives it back as it is.
    """
    return secrets.randbits(53)


def derive_key(seed: int, purpose: str, example: int = 0, block: int = 0) -> int:
    """The 128-bit key of one stream."""
    try:
        numbers = struct.pack("<qqq", seed, example, block)
    except struct.error:
        raise BadInput(
            "seed, example and block of a random stream",
            expected="whole numbers from -2**63 to 2**63 - 1",
            got=f"{seed}, {example}, {block}",
            fix="choose a smaller seed",
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

    For initialisation, shuffling and the like. Not for certification noise on a CPU, where torch
    would keep 32 bits of it: use `standard_normal`.
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
    """Independent float32 N(0, 1) draws of one stream, the same on every call with that key."""
    return normals_of([derive_key(seed, purpose, example, block)], shape, device)[0]


def normals_of(keys: Sequence[int], shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """float32 N(0, 1) draws of several streams, named by their keys: (len(keys), *shape)."""
    if device.type == "cpu":
        draws = np.empty((len(keys), *shape), dtype=np.float32)
        for draw, key in zip(draws, keys, strict=True):
            generator = np.random.Generator(np.random.Philox(key=key))
            generator.standard_normal(dtype=np.float32, out=draw)
        return torch.from_numpy(draws)
    return philox_normals(keys, shape, device)


def philox_normals(
    keys: Sequence[int],
    shape: tuple[int, ...],
    device: torch.device,
    draw: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = normal_draws,
) -> torch.Tensor:
    """`normals_of` by Philox in torch operations, as a GPU draws them.

    Args:
        keys: of the streams.
        shape: of each stream's draws.
        device: any.
        draw: `normal_draws`, or what a compiler made of it.
    """
    count = torch.Size(shape).numel()
    draws = draw(stream_words(keys, device), counters(count, device))
    return draws[:, :count].reshape(len(keys), *shape)


def noise_blocks(n: int) -> Iterator[tuple[int, int]]:
    """The blocks that n noise draws take: (block, how many of its draws are used)."""
    for block in range(-(-n // NOISE_BLOCK)):
        yield block, min(NOISE_BLOCK, n - block * NOISE_BLOCK)


def noisy_copies(
    images: torch.Tensor, keys: Sequence[int], *, sigma: float, normals: Normals | None = None
) -> torch.Tensor:
    """One block of noisy copies of each image: (len(images) * NOISE_BLOCK, C, H, W).

    Args:
        images: (N, C, H, W).
        keys: N streams of noise, one an image.
        sigma: noise level.
        normals: draws the noise; `normals_of` by default.
    """
    noise = (normals or normals_of)(keys, (NOISE_BLOCK, *images.shape[1:]), images.device)
    return noise.mul_(sigma).add_(images[:, None]).flatten(0, 1)
