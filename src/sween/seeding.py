"""Everything random in sween is keyed by (seed, purpose, example, block), never by global state.

Two draws with different keys come from independent streams; one key always gives the same draw,
whichever worker, batch size or order asked for it. Keys are 128 bits of BLAKE2b, so streams of one
run do not collide: torch's CPU generator keeps only 32 bits of its seed, which over the thousand
noise blocks of one certificate would repeat a block about once in eight thousand images, and a
repeated block breaks the independence that every confidence bound here rests on. Hence the CPU
stream is numpy's counter-based Philox with the full key; CUDA's own Philox takes 64 bits.
"""

import hashlib
import struct
from collections.abc import Iterator

import numpy as np
import torch

from sween.errors import BadInput

NOISE_BLOCK = 100
"""Noise vectors drawn per key: part of every result's definition, so changing it changes counts."""


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
    if device.type == "cpu":
        generator = numpy_generator(seed, purpose, example, block)
        return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
    torch_generator = torch.Generator(device=device)
    torch_generator.manual_seed(torch_seed(seed, purpose, example, block))
    return torch.randn(shape, generator=torch_generator, device=device)


def noise_blocks(n: int) -> Iterator[tuple[int, int]]:
    """The blocks that n noise draws take: (block, how many of its draws are used)."""
    for block in range(-(-n // NOISE_BLOCK)):
        yield block, min(NOISE_BLOCK, n - block * NOISE_BLOCK)


def noisy_copies(
    image: torch.Tensor, *, sigma: float, seed: int, purpose: str, example: int, block: int
) -> torch.Tensor:
    """One block of noisy copies of an image: (NOISE_BLOCK, C, H, W), keyed as `standard_normal`."""
    noise = standard_normal(
        (NOISE_BLOCK, *image.shape),
        seed=seed,
        purpose=purpose,
        example=example,
        block=block,
        device=image.device,
    )
    return image + sigma * noise
