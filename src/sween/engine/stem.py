"""The stem of an ImageNet-style ResNet as one operation, by a custom kernel where it can run.

(x - mean) / std, a 7x7 convolution with stride 2 to 64 channels, relu, and a 3x3 max pool with
stride 2. By libraries each layer writes its outputs and the next one reads them again, and their
kernels are slow at 3 channels.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument, can_compile, compile_kernel, read_source
from sween.cuda.compiler import COMPILING
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.layer_kernels import affine_of, agrees, moved
from sween.engine.operation import fake_of, operation

FILES = ("convolution.cu", "stem.cu")
CHANNELS = 64
"""Of the convolution's outputs."""

BAND = 14
"""Rows of the output that a block of the kernel computes; each band computes one row of the
convolution, of 2 * BAND + 1, that the band above computes too."""

WIDEST = 512
"""Of images: a block has as many threads."""

IMAGES_COMPARED = 64
"""So many that all processors of a GPU are busy."""


class Launch(Protocol):
    """Runs the kernel for images of this size."""

    def __call__(
        self, size: tuple[int, int], blocks: int, arguments: Sequence[Argument]
    ) -> None: ...


def definitions(size: tuple[int, int], band: int = BAND) -> list[str]:
    """Compiler options, for images of a height and width."""
    high, wide = size
    room = f"-DSTEM_SHARED_BYTES={shared_bytes(size)}"
    return [f"-DHEIGHT={high}", f"-DWIDTH={wide}", f"-DBAND={band}", room]


def shared_bytes(size: tuple[int, int]) -> int:
    """16 rows of the image, two rows of which the maximum is taken, and the weights."""
    wide = size[1]
    return 16 * (wide + 8) * 8 + 2 * (wide // 2) * (2 * CHANNELS + 16) + 14 * 4 * 32 * 16


class _Launcher:
    def __call__(self, size: tuple[int, int], blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._compiled(size, torch.cuda.current_device())(
                grid=(blocks, 1, 1),
                block=(size[1], 1, 1),
                args=list(arguments),
                shared_mem=shared_bytes(size),
            )

    @functools.cache  # noqa: B019  # there is one launcher
    def _compiled(self, size: tuple[int, int], device_index: int) -> Any:
        with COMPILING:
            source = read_source("sween.engine", FILES)
            compiled = compile_kernel(source, "stem", definitions(size))
            compiled.set_shared_memory_config(shared_bytes(size))
        return compiled


launch: Launch = _Launcher()


class Stem(nn.Module):
    """maxpool(relu(conv((x - mean) / std))).

    Args:
        first: relu(conv(x)), of a convolution that `suits`; not changed.
        mean: of the normalisation, (3, 1, 1) or such that it can be expanded to that; None if the
            images are not normalised.
        std: likewise.

    Attributes:
        size: of the images for which the kernel runs, which are float32; None if it does not. See
            `let_run`.
    """

    packed: torch.Tensor
    mean: torch.Tensor | None
    std: torch.Tensor | None

    def __init__(
        self, first: FusedConvolution, mean: torch.Tensor | None, std: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.first = first
        self.size: tuple[int, int] | None = None
        conv = first.conv
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("packed", _packed(conv.weight.detach()))
        # No buffers, which a network in float16 would round.
        self.affine = affine_of(mean, std, 3, conv.weight.device)
        zeros = conv.weight.new_zeros(CHANNELS)
        self.bias = (zeros if conv.bias is None else conv.bias.detach()).float()

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel computes it."""
        return self.size is not None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.size is not None and images.shape[1:] == (3, *self.size):
            return self._by_kernel(images)
        if self.mean is not None and self.std is not None:
            images = (images - self.mean) / self.std
        return functional.max_pool2d(self.first(images), 3, stride=2, padding=1)

    def _by_kernel(self, images: torch.Tensor) -> torch.Tensor:
        packed = self.packed.to(torch.float16)
        fused: torch.Tensor = stem(images.contiguous(), self.affine, packed, self.bias)
        return fused

    @property
    def reader(self) -> "StemWriter":
        """What reads the images: all of it, so that there is no `rest`."""
        return StemWriter(self.affine, self.packed.to(torch.float16), self.bias)

    @property
    def rest(self) -> nn.Module | None:
        return None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.affine, self.bias = moved(self.affine, fn), moved(self.bias, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel compute the layers if it can; if it is wrong, with a warning.

        Args:
            images: a batch of the only shape that will be evaluated.
            dtype: of the network, which is still in float32.
        """
        if not can_run(images, dtype):
            return
        few, (high, wide) = images[:IMAGES_COMPARED], images.shape[2:]
        if agrees(lambda: self._by_kernel(few), lambda: self(few), "the first layers"):
            self.size = (high, wide)


class StemWriter:
    """Writes the outputs of the layers where a network reads them; see `after_images`."""

    def __init__(self, affine: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor) -> None:
        self.affine, self.packed, self.bias = affine, packed, bias

    def like(self, images: torch.Tensor) -> torch.Tensor:
        """A tensor that `write` can fill."""
        count, _, high, wide = images.shape
        out = self.packed.new_empty(count, high // 4, wide // 4, CHANNELS)
        return out.permute(0, 3, 1, 2)

    def write(self, images: torch.Tensor, out: torch.Tensor) -> None:
        count, channels, high, wide = images.shape
        if channels != 3 or images.dtype != torch.float32 or not images.is_contiguous():
            raise ValueError(f"not float32, contiguous and of 3 channels: {images.shape}")
        dense = out.permute(0, 2, 3, 1).is_contiguous() and out.dtype == torch.float16
        if out.shape != (count, CHANNELS, high // 4, wide // 4) or not dense:
            raise ValueError(f"not a place for them: {out.shape}")
        bands = -(-(high // 4) // BAND)
        arguments = [images, self.affine, self.packed, self.bias, out]
        launch((high, wide), count * bands, arguments)


def suits(conv: nn.Conv2d) -> bool:
    """Whether the kernel has the geometry of a convolution."""
    return (
        (conv.in_channels, conv.out_channels, conv.groups) == (3, CHANNELS, 1)
        and (conv.kernel_size, conv.stride, conv.padding) == ((7, 7), (2, 2), (3, 3))
        and (conv.dilation, conv.padding_mode) == ((1, 1), "zeros")
    )


def can_run(images: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel can compute the layers in `dtype` for this batch."""
    if images.ndim != 4 or images.shape[1] != 3:
        return False
    high, wide = images.shape[2:]
    fits = wide % 32 == high % 4 == 0 and 0 < wide <= WIDEST and high > 0
    right = dtype == torch.float16 and images.dtype == torch.float32
    return fits and right and can_compile(images.device, shared_bytes((high, wide)))


@operation
def stem(
    images: torch.Tensor, affine: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """See `Stem`.

    Args:
        images: float32 (N, 3, H, W), contiguous.
        affine: factors and summands of the channels, (6,) float32.
        packed: weights, float16.
        bias: float32 (64,).
    """
    writer = StemWriter(affine, packed, bias)
    out = writer.like(images)
    writer.write(images, out)
    return out


@fake_of(stem)
def _like(
    images: torch.Tensor, affine: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return StemWriter(affine, packed, bias).like(images)


def _packed(weight: torch.Tensor) -> torch.Tensor:
    """The weights (64, 3, 7, 7) in the order in which the lanes of a warp need them.

    A step of the kernel multiplies by 16 x 64 of them: half a row of a window, that is 4 of 8
    pixels, the first of which has weight 0, of 4 channels, the last of which has. By step, pair of
    tiles of 8 output channels, lane, tile, half of the 16, and two consecutive of them.
    """
    wide = functional.pad(weight, (1, 0, 0, 0, 0, 1))  # (64, 4, 7, 8)
    steps = wide.permute(2, 3, 1, 0).reshape(14, 2, 4, 2, 4, 2, 8)
    return steps.permute(0, 4, 6, 2, 5, 1, 3).contiguous()
