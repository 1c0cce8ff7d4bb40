"""relu(x @ weight.T + bias + shortcut) by one kernel in Triton, for benchmarks/convolutions.py."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl

TILES = (
    (128, 64, 64, 4, 4),
    (128, 128, 64, 4, 8),
    (128, 256, 64, 3, 8),
    (256, 64, 64, 3, 8),
    (64, 256, 64, 4, 4),
)
"""Rows, columns and depth of a tile, stages of the pipeline and warps."""


@triton.jit
def _product(
    x, weight, bias, shortcut, out, rows, depth: tl.constexpr, columns: tl.constexpr,
    high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, add: tl.constexpr,
):  # fmt: skip
    # Tiles of the same rows after one another: they read the same part of x.
    tile = tl.program_id(0)
    across: tl.constexpr = columns // wide
    row = (tile // across) * high + tl.arange(0, high)
    column = (tile % across) * wide + tl.arange(0, wide)
    inner = tl.arange(0, deep)
    inside = (row < rows)[:, None]
    places = row[:, None].to(tl.int64)
    total = tl.zeros((high, wide), dtype=tl.float32)
    for start in range(0, depth, deep):
        some = tl.load(x + places * depth + (start + inner)[None, :], mask=inside, other=0.0)
        own = tl.load(weight + column[None, :] * depth + (start + inner)[:, None])
        total += tl.dot(some, own)
    total += tl.load(bias + column)[None, :]
    to = places * columns + column[None, :]
    if add:
        total += tl.load(shortcut + to, mask=inside, other=0.0)
    tl.store(out + to, tl.maximum(total, 0.0).to(out.dtype.element_ty), mask=inside)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    shortcut: torch.Tensor | None,
    tile: tuple[int, int, int, int, int],
) -> torch.Tensor:
    """Rows (R, K), weights (M, K), shortcut (R, M): relu of their product and the others."""
    high, wide, deep, stages, warps = tile
    (rows, depth), columns = x.shape, len(weight)
    if depth % deep or columns % wide:
        raise ValueError(f"tiles of {wide}x{deep} for weights of {columns}x{depth}")
    out = x.new_empty(rows, columns)
    grid = (triton.cdiv(rows, high) * (columns // wide),)
    _product[grid](
        x, weight, bias, out if shortcut is None else shortcut, out, rows, depth, columns,
        high, wide, deep, shortcut is not None, num_stages=stages, num_warps=warps,
    )  # fmt: skip
    return out


@triton.jit
def _pair(
    x, y, weight, other, bias, out, rows, depth: tl.constexpr, deeper: tl.constexpr,
    columns: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    across: tl.constexpr = columns // wide
    row = (tile // across) * high + tl.arange(0, high)
    column = (tile % across) * wide + tl.arange(0, wide)
    inner = tl.arange(0, deep)
    inside = (row < rows)[:, None]
    places = row[:, None].to(tl.int64)
    total = tl.zeros((high, wide), dtype=tl.float32)
    for start in range(0, depth, deep):
        some = tl.load(x + places * depth + (start + inner)[None, :], mask=inside, other=0.0)
        own = tl.load(weight + column[None, :] * depth + (start + inner)[:, None])
        total += tl.dot(some, own)
    for start in range(0, deeper, deep):
        some = tl.load(y + places * deeper + (start + inner)[None, :], mask=inside, other=0.0)
        own = tl.load(other + column[None, :] * deeper + (start + inner)[:, None])
        total += tl.dot(some, own)
    total += tl.load(bias + column)[None, :]
    to = places * columns + column[None, :]
    tl.store(out + to, tl.maximum(total, 0.0).to(out.dtype.element_ty), mask=inside)


def pair(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    other: torch.Tensor,
    bias: torch.Tensor,
    tile: tuple[int, int, int, int, int],
) -> torch.Tensor:
    """relu(x @ weight.T + y @ other.T + bias)."""
    high, wide, deep, stages, warps = tile
    (rows, depth), columns = x.shape, len(weight)
    out = x.new_empty(rows, columns)
    grid = (triton.cdiv(rows, high) * (columns // wide),)
    _pair[grid](
        x, y, weight, other, bias, out, rows, depth, y.shape[1], columns, high, wide, deep,
        num_stages=stages, num_warps=warps,
    )  # fmt: skip
    return out
