"""Packs a quantised network in the order in which the kernels in integers read it."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional

from sween.engine.kernels.packing import Stage
from sween.engine.kernels.quantized import IntegerConvolution, QuantizedResNet

MAGIC_BITS = 0x4B400000
"""Of the float 1.5 * 2**23, from which sums start."""


def pack_bytes(weight: torch.Tensor) -> torch.Tensor:
    """Int8 weights (out, in, h, w) of a convolution as fragments, flat.

    A tensor-core instruction takes 32 input by 8 output channels; a lane reads its weights of two
    such tiles in one 16-byte load, and gets the sums of four consecutive output channels.

    Args:
        weight: with multiples of 32 input and 16 output channels.
    """
    out, into, height, width = weight.shape
    tiles = weight.reshape(out // 16, 4, 2, 2, into // 32, 2, 4, 4, height, width)
    pair, quarter, tile, which, depth, half, k, byte, y, x = range(10)
    return tiles.permute(x, depth, y, pair, quarter, which, k, tile, half, byte).flatten()


def pair_taps(weight: torch.Tensor) -> torch.Tensor:
    """Weights (out, at most 16, h, w) as if pairs of taps were single taps with 32 channels.

    The pairs of 3x3 taps are those of `convolve_pairs`; what has no partner is paired with zeros.
    """
    weight = functional.pad(weight, (0, 0, 0, 0, 0, 16 - weight.shape[1]))
    nothing = torch.zeros_like(weight[:, :, 0, 0])
    if weight.shape[-1] == 1:
        pairs = [(weight[:, :, 0, 0], nothing)]
    else:
        pairs = [(weight[:, :, y, 0], weight[:, :, y, 1]) for y in range(3)]
        pairs += [(weight[:, :, 0, 2], weight[:, :, 1, 2]), (weight[:, :, 2, 2], nothing)]
    return torch.stack([torch.cat(pair, 1) for pair in pairs], 2)[..., None]


def pack_integer_stages(network: QuantizedResNet) -> tuple[Stage, Stage, Stage]:
    """The parameters of the three kernels; see `pack_stages`.

    Channels of a wide network are padded to a multiple of 32, with weights of 0.
    """
    convs = [conv for block in network.blocks for conv in block]
    (second, to_second), (third, to_third) = sorted(network.shortcuts.items())
    second, third = 2 * second, 2 * third
    own = [convs[:second], convs[second + 1 : third], convs[third + 1 :]]
    last = [[convs[second], to_second], [convs[third], to_third], []]
    return (
        _stage([network.first, *own[0]], last[0], len(own[0]), network.width),
        _stage(own[1], last[1], len(own[1]), network.width),
        _stage(own[2], last[2], len(own[2]), network.width),
    )


def _stage(
    own: Sequence[IntegerConvolution],
    last: Sequence[IntegerConvolution],
    convolutions: int,
    width: int,
) -> Stage:
    multiple = 16 if width == 1 else 32
    convs = [_padded(conv, multiple) for conv in (*own, *last)]
    weights = [conv.weight for conv in convs]
    packed = [
        pack_bytes(pair_taps(weight) if weight.shape[1] <= 16 else weight) for weight in weights
    ]
    constants = torch.cat([_constants(conv, MAGIC_BITS if width == 1 else 0) for conv in convs])
    return Stage(torch.cat(packed), constants, convolutions)


def _padded(conv: IntegerConvolution, multiple: int) -> IntegerConvolution:
    """With a multiple of output channels, and of input channels if it has more than 16."""
    out, into = conv.weight.shape[:2]
    more = -out % multiple
    return dataclasses.replace(
        conv,
        weight=functional.pad(
            conv.weight, (0, 0, 0, 0, 0, -into % 32 if into > 16 else 0, 0, more)
        ),
        bias=functional.pad(conv.bias, (0, more)),
        scale=functional.pad(conv.scale, (0, more)),
    )


def _constants(conv: IntegerConvolution, start: int) -> torch.Tensor:
    """How sums start, their scales and pairs of the factor for the next layer, as int32."""
    next = torch.full((len(conv.scale), 2), conv.next, dtype=torch.float16).view(torch.int32)
    return torch.cat([conv.bias + start, conv.scale.view(torch.int32), next.flatten()])
