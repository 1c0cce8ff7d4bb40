"""The first convolution of a network together with the normalisation of its images.

relu(conv((x - mean) / std)). A kernel of few lines writes the images as cuDNN's kernels read them
fastest: in float16, channels-last, with channels of zeros up to 8. Otherwise several passes over
the images do that, one of them cuDNN's own.
"""

import copy
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

FILES = ("convolution.cu", "normalized_pixels.cu")
THREADS = 256
CHANNELS = 8
"""Of a pixel, as the kernel writes it."""

IMAGES_COMPARED = 64


class Launch(Protocol):
    """Runs the kernel for images with this many channels."""

    def __call__(self, channels: int, blocks: int, arguments: Sequence[Argument]) -> None: ...


class _Launcher:
    def __call__(self, channels: int, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._compiled(channels, torch.cuda.current_device())(
                grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=list(arguments)
            )

    @functools.cache  # noqa: B019  # there is one launcher
    def _compiled(self, channels: int, device_index: int) -> Any:
        with COMPILING:
            source = read_source("sween.engine", FILES)
            return compile_kernel(source, "normalized_pixels", [f"-DCHANNELS={channels}"])


launch: Launch = _Launcher()


class NormalizedConvolution(nn.Module):
    """relu(conv((x - mean) / std)).

    Args:
        first: relu(conv(x)), of a convolution that `suits`; not changed.
        mean: of the normalisation, (C, 1, 1) or such that it can be expanded to that; None if the
            images are not normalised.
        std: likewise.

    Attributes:
        padded: the convolution of what the kernel writes; None if it does not run. See `let_run`.
    """

    mean: torch.Tensor | None
    std: torch.Tensor | None

    def __init__(
        self, first: FusedConvolution, mean: torch.Tensor | None, std: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.first, conv = first, first.conv
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.padded: FusedConvolution | None = None
        # No buffer, which a network in float16 would round.
        self.affine = affine_of(mean, std, conv.in_channels, conv.weight.device)

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel writes the convolution's input."""
        return self.padded is not None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.padded is not None:
            return self._by_kernel(images, self.padded)
        if self.mean is not None and self.std is not None:
            images = (images - self.mean) / self.std
        out: torch.Tensor = self.first(images)
        return out

    def _by_kernel(self, images: torch.Tensor, padded: FusedConvolution) -> torch.Tensor:
        out: torch.Tensor = padded(normalized_pixels(images.contiguous(), self.affine))
        return out

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.affine = moved(self.affine, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel write the convolution's input if it can; if it is wrong, with a warning.

        Args:
            images: a batch of the only shape that will be evaluated.
            dtype: of the network, which is still in float32.
        """
        conv = self.first.conv
        fits = images.ndim == 4 and images.shape[1] == conv.in_channels
        right = dtype == torch.float16 and images.dtype == torch.float32
        if not fits or not right or not can_compile(images.device):
            return
        few, padded = images[:IMAGES_COMPARED], FusedConvolution(_padded(conv))
        if agrees(lambda: self._by_kernel(few, padded), lambda: self(few), "normalised images"):
            self.padded = padded

    @property
    def reader(self) -> "PixelWriter":
        """What reads the images; `rest` is what follows."""
        return PixelWriter(self.affine)

    @property
    def rest(self) -> nn.Module | None:
        return self.padded


class PixelWriter:
    """Writes normalised images where a network reads them; see `after_images`."""

    def __init__(self, affine: torch.Tensor) -> None:
        self.affine = affine

    def like(self, images: torch.Tensor) -> torch.Tensor:
        """A tensor that `write` can fill."""
        count, _, high, wide = images.shape
        out = images.new_empty(count, high, wide, CHANNELS, dtype=torch.float16)
        return out.permute(0, 3, 1, 2)

    def write(self, images: torch.Tensor, out: torch.Tensor) -> None:
        count, channels, high, wide = images.shape
        if 2 * channels != len(self.affine) or images.dtype != torch.float32:
            raise ValueError(f"not float32 of {len(self.affine) // 2} channels: {images.shape}")
        if not images.is_contiguous() or not out.permute(0, 2, 3, 1).is_contiguous():
            raise ValueError(f"not contiguous: {images.shape}")
        if out.shape != (count, CHANNELS, high, wide) or out.dtype != torch.float16:
            raise ValueError(f"not a place for them: {out.shape}")
        every = count * high * wide
        if every >= 2**31:
            raise ValueError(f"expected fewer than 2**31 pixels, got {every}")
        blocks = -(-every // THREADS)
        launch(channels, blocks, [images, self.affine, out, high * wide, every])


def suits(conv: nn.Conv2d) -> bool:
    """Whether the kernel can write the input of a convolution."""
    return conv.in_channels <= CHANNELS // 2 and conv.groups == 1


def _padded(conv: nn.Conv2d) -> nn.Conv2d:
    """The same convolution for images with channels of zeros up to 8."""
    own = copy.deepcopy(conv)
    own.in_channels = CHANNELS
    missing = CHANNELS - conv.in_channels
    weight = functional.pad(conv.weight.detach(), (0, 0, 0, 0, 0, missing))
    own.weight = nn.Parameter(weight, requires_grad=False)
    return own


@operation
def normalized_pixels(images: torch.Tensor, affine: torch.Tensor) -> torch.Tensor:
    """x * factor + summand in float16, channels-last, with channels of zeros up to 8.

    Args:
        images: float32 (N, C, H, W), contiguous.
        affine: factors and summands of the channels, (2 * C,) float32.
    """
    writer = PixelWriter(affine)
    out = writer.like(images)
    writer.write(images, out)
    return out


@fake_of(normalized_pixels)
def _like(images: torch.Tensor, affine: torch.Tensor) -> torch.Tensor:
    return PixelWriter(affine).like(images)
