"""relu(conv(x) + other(y)) of two 1x1 convolutions by one kernel, where it can run.

The first block of a stage ends so, where its shortcut is a convolution. Two calls of a library
write the shortcut's output, which is as large as the block's own, and read it again.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn

from sween.cuda import Argument, can_compile, compile_kernel, read_source
from sween.cuda.compiler import COMPILING
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.layer_kernels import agrees, moved
from sween.engine.operation import fake_of, operation

FILES = ("convolution.cu", "added_convolutions.cu")
THREADS = 256
TILE = 64
"""Rows, that is pixels, that a block computes at a time."""

MOST_COLUMNS = 256
"""With more, a lane has too few registers for its sums."""

ROWS_COMPARED = 100_000
"""Random ones, so many that each block has several tiles, the last of which is not full."""


class Shape(NamedTuple):
    """Columns of x and of y, and of the output."""

    depth_x: int
    depth_y: int
    columns: int

    @property
    def definitions(self) -> list[str]:
        """Compiler options."""
        numbers = {"DEPTH_X": self.depth_x, "DEPTH_Y": self.depth_y, "COLUMNS": self.columns}
        numbers["ADDED_SHARED_BYTES"] = self.shared_bytes
        return [f"-D{name}={number}" for name, number in numbers.items()]

    @property
    def shared_bytes(self) -> int:
        """Two tiles of rows, and the weights."""
        planes = (self.depth_x + self.depth_y) // 8
        return 2 * planes * (TILE + 1) * 16 + planes * 8 * self.columns * 2

    @property
    def blocks_per_processor(self) -> int:
        """As in the kernel's launch bounds."""
        return 1 if self.shared_bytes > 113_000 else 2


class Launch(Protocol):
    """Runs the kernel; `blocks` is the most that run at a time."""

    def blocks(self, shape: Shape, device: torch.device) -> int: ...

    def __call__(self, shape: Shape, blocks: int, arguments: Sequence[Argument]) -> None: ...


class _Launcher:
    def blocks(self, shape: Shape, device: torch.device) -> int:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return int(processors) * shape.blocks_per_processor

    def __call__(self, shape: Shape, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._compiled(shape, torch.cuda.current_device())(
                grid=(blocks, 1, 1),
                block=(THREADS, 1, 1),
                args=list(arguments),
                shared_mem=shape.shared_bytes,
            )

    @functools.cache  # noqa: B019  # there is one launcher
    def _compiled(self, shape: Shape, device_index: int) -> Any:
        with COMPILING:
            source = read_source("sween.engine", FILES)
            compiled = compile_kernel(source, "added_convolutions", shape.definitions)
            compiled.set_shared_memory_config(shape.shared_bytes)
        return compiled


launch: Launch = _Launcher()


class AddedConvolutions(nn.Module):
    """relu(conv(x) + other(y)).

    Args:
        conv: see `suits`; not changed.
        other: of the shortcut; not changed.

    Attributes:
        by_kernel: whether the kernel computes it; see `let_run`.
    """

    packed: torch.Tensor

    def __init__(self, conv: nn.Conv2d, other: nn.Conv2d) -> None:
        super().__init__()
        self.conv, self.other, self.by_kernel = FusedConvolution(conv), other, False
        weight = torch.cat([own.weight.detach().flatten(1) for own in (conv, other)], dim=1)
        self.register_buffer("packed", _packed(weight))
        # No buffer, which a network in float16 would round.
        biases = [own.bias.detach().float() for own in (conv, other) if own.bias is not None]
        self.bias = torch.stack(biases).sum(0) if biases else weight.new_zeros(len(weight)).float()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # A shortcut of one pixel, or of one image, is added to all of them.
        alike = (len(x), *x.shape[2:]) == (len(y), *y.shape[2:])
        if not self.by_kernel or not alike:
            out: torch.Tensor = self.conv(x, self.other(y))
            return out
        return self._by_kernel(x, y)

    def _by_kernel(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # `to` with a memory format would leave views as they are, with gaps between the pixels.
        last = torch.channels_last
        both = (own.to(torch.float16).contiguous(memory_format=last) for own in (x, y))
        fused: torch.Tensor = added_convolutions(*both, self.packed.to(torch.float16), self.bias)
        return fused

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.bias = moved(self.bias, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def shape(self) -> Shape:
        conv = self.conv.conv
        return Shape(conv.in_channels, self.other.in_channels, conv.out_channels)

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel compute it if it can; if it is wrong, with a warning.

        Args:
            images: on the network's device.
            dtype: of the network.
        """
        shape, device = self.shape, images.device
        if dtype != torch.float16 or not can_compile(device, shape.shared_bytes):
            return
        generator = torch.Generator().manual_seed(0)
        x, y = (
            torch.rand(1, channels, ROWS_COMPARED, 1, generator=generator).to(device)
            for channels in shape[:2]
        )
        self.by_kernel = agrees(
            lambda: self._by_kernel(x, y),
            lambda: self(x, y),
            "two 1x1 convolutions that are added",
        )


def suits(conv: nn.Conv2d, other: nn.Conv2d) -> bool:
    """Whether the kernel has the geometry of two convolutions, which are 1x1 with stride 1."""
    depths = conv.in_channels, other.in_channels
    geometry = [(own.kernel_size, own.stride, own.padding, own.groups) for own in (conv, other)]
    return (
        geometry == [((1, 1), (1, 1), (0, 0), 1)] * 2
        and conv.out_channels == other.out_channels
        and conv.out_channels % 128 == 0
        and conv.out_channels <= MOST_COLUMNS
        and all(depth % TILE == 0 for depth in depths)
    )


@operation
def added_convolutions(
    x: torch.Tensor, y: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """See `AddedConvolutions`.

    Args:
        x: float16 (N, DEPTH_X, H, W), channels-last.
        y: float16 (N, DEPTH_Y, H, W), channels-last.
        packed: weights, float16.
        bias: float32.
    """
    count, depth, high, wide = x.shape
    shape = Shape(depth, y.shape[1], len(bias))
    for own in (x, y):
        dense = own.is_contiguous(memory_format=torch.channels_last)
        if (
            not dense
            or own.dtype != torch.float16
            or own.shape != (count, own.shape[1], high, wide)
        ):
            raise ValueError(f"not float16, channels-last and alike: {x.shape} and {y.shape}")
    rows = count * high * wide
    out = packed.new_empty(count, high, wide, len(bias))
    blocks = min(-(-rows // TILE), launch.blocks(shape, x.device))
    launch(shape, blocks, [x, y, packed, bias, out, rows, blocks])
    return out.permute(0, 3, 1, 2)


@fake_of(added_convolutions)
def _like(
    x: torch.Tensor, y: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return packed.new_empty(len(x), *x.shape[2:], len(bias)).permute(0, 3, 1, 2)


def _packed(weight: torch.Tensor) -> torch.Tensor:
    """The weights (M, K) in the order in which the lanes of a warp need them.

    By step of 16 of the K, pair of tiles of 8 columns, lane, tile, half of the 16, and two
    consecutive of them. Columns 2 q and 2 q + 1 of tile t of four are 8 q + 2 t and the next of
    the 32.
    """
    columns, depth = weight.shape
    # group of 32, q, pair in the group, tile of the pair, column of two; step, half, lane % 4, two
    parts = weight.view(columns // 32, 4, 2, 2, 2, depth // 16, 2, 4, 2)
    return parts.permute(5, 0, 2, 1, 4, 7, 3, 6, 8).contiguous()
