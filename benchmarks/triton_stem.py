"""The first convolution of a ResNet (7x7, stride 2, 3 channels) by a kernel in Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch.nn import functional

CHANNELS = 4
"""Of the padded images: 8 pixels of a row are then 64 bytes, aligned to 16."""

TILES = ((128, 3, 4), (128, 4, 8), (256, 3, 8), (64, 4, 4))
"""Outputs of a tile, stages of the pipeline and warps."""


def padded(images: torch.Tensor) -> torch.Tensor:
    """(N, 3, H, W) as (N, H + 6, W + 8, 4): rows 3 before and after, columns 4 and 4."""
    pixels = functional.pad(images, (4, 4, 3, 3, 0, CHANNELS - images.shape[1]))
    return pixels.permute(0, 2, 3, 1).contiguous()


def packed(weight: torch.Tensor) -> torch.Tensor:
    """(M, 3, 7, 7) as (7, 32, M): for each row of a window 8 pixels, the first of weight 0."""
    wide = functional.pad(weight, (1, 0, 0, 0, 0, CHANNELS - weight.shape[1]))
    return wide.permute(2, 3, 1, 0).reshape(7, 8 * CHANNELS, len(weight)).contiguous()


@triton.jit
def _stem(
    x, weight, bias, out, count, high: tl.constexpr, wide: tl.constexpr, columns: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = (place < count)[:, None]
    image, rest = place // (high * wide), place % (high * wide)
    row, column = rest // wide, rest % wide
    inner, own = tl.arange(0, 32), tl.arange(0, columns)
    line: tl.constexpr = (2 * wide + 8) * 4
    start = (image.to(tl.int64) * (2 * high + 6) + 2 * row) * line + column * 8
    total = tl.zeros((tile, columns), dtype=tl.float32)
    for k in range(7):
        some = tl.load(x + start[:, None] + (k * line + inner)[None, :], mask=inside, other=0.0)
        total += tl.dot(some, tl.load(weight + (k * 32 + inner)[:, None] * columns + own[None, :]))
    total = tl.maximum(total + tl.load(bias + own)[None, :], 0.0)
    to = place[:, None].to(tl.int64) * columns + own[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=inside)


def stem(
    pixels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, tile: tuple[int, int, int]
) -> torch.Tensor:
    """relu of the convolution, (N, M, H / 2, W / 2), of `padded` images and `packed` weights."""
    outputs, stages, warps = tile
    high, wide = (pixels.shape[1] - 6) // 2, (pixels.shape[2] - 8) // 2
    columns = weight.shape[-1]
    out = pixels.new_empty(len(pixels), high, wide, columns)
    count = len(pixels) * high * wide
    _stem[(triton.cdiv(count, outputs),)](
        pixels, weight, bias, out, count, high, wide, columns, outputs,
        num_stages=stages, num_warps=warps,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)
