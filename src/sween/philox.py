"""Philox4x32-10 (Salmon et al. 2011) in torch operations: keyed, counter-based noise on any device.

A stream is identified by 128 bits: 64 are the cipher's key, 64 the upper half of its counter; the
lower half counts draws. The output equals the published generator's bit for bit, on CPUs and GPUs
and for any shape, and torch.compile turns it into a single kernel.
"""

import math
from collections.abc import Sequence

import torch

from sween.interleave import to_device_async

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four random 32-bit words per counter and key, all as int64 tensors below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The products wrap around at 64 bits; both halves are still correct.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((right >> 32) & _MASK) ^ c1 ^ k0,
            right & _MASK,
            ((left >> 32) & _MASK) ^ c3 ^ k1,
            left & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def stream_words(streams: Sequence[int], device: torch.device) -> torch.Tensor:
    """The 128-bit identifiers of streams as (S, 4) words: two of the key, two of the counter."""
    words = [[(stream >> shift) & _MASK for shift in (0, 32, 64, 96)] for stream in streams]
    table = torch.tensor(words, dtype=torch.int64).view(-1, 4)
    return to_device_async(table, device)


def counters(count: int, device: torch.device) -> torch.Tensor:
    """The counters needed for `count` draws of a stream, at four draws per counter."""
    return torch.arange(-(-count // 4), device=device)


def random_words(streams: torch.Tensor, steps: torch.Tensor) -> Words:
    """Four words per counter of each stream: (S, len(steps)) each.

    Args:
        streams: as returned by `stream_words`.
        steps: counters. An argument, since a compiler that knew their values would use 32-bit
            arithmetic.
    """
    shape = (len(streams), len(steps))
    k0, k1, c2, c3 = (streams[:, i : i + 1].expand(shape) for i in range(4))
    return philox((steps.expand(shape), torch.zeros_like(c2), c2, c3), (k0, k1))


def normal_draws(streams: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Four float32 N(0, 1) draws per counter of each stream, by the Box-Muller transform.

    32-bit uniforms truncate the tails at 6.764 standard deviations, about where torch's own CUDA
    normals end; certification refuses more votes than that allows (`sween.smoothing.tail`).

    Returns:
        (S, 4 * len(steps))
    """
    a, b, c, d = random_words(streams, steps)
    return torch.cat((*_box_muller(a, b), *_box_muller(c, d)), dim=1)


def _box_muller(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # One half is added so that the logarithm never sees 0.
    radius = torch.sqrt(-2 * torch.log((one.float() + 0.5) * 2.0**-32))
    angle = other.float() * (2 * math.pi * 2.0**-32)
    return radius * torch.cos(angle), radius * torch.sin(angle)
