"""Depthwise convolutions with their bias by one kernel, where it can run.

torch and cuDNN have kernels for them that are several times slower in float16 with channels last,
and add the bias in a pass of its own.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import fx, nn

from sween.cuda import Argument, can_compile
from sween.engine.layer_kernels import FormLauncher, agrees, moved
from sween.engine.operation import fake_of, operation
from sween.engine.tracing import has_hooks, only_called, replace_part

FILES = ("convolution.cu", "depthwise_convolution.cu")
THREADS = 128
SIDES = (3, 5, 7)
"""Of windows that the kernel has."""

ROWS = 4
"""Of pixels that a thread computes."""

COMPARED = (2, 9, 14)
"""Images, and their height and width, on which the kernel is compared with torch."""


class Form(NamedTuple):
    """Compile-time parameters of the kernel.

    Attributes:
        pairs: of channels.
        side: of the window.
        columns: of pixels that a thread computes.
    """

    pairs: int
    side: int
    columns: int

    def definitions(self) -> list[str]:
        """Compiler options."""
        numbers = {"PAIRS": self.pairs, "WINDOW": self.side, "COLUMNS": self.columns, "ROWS": ROWS}
        return [f"-D{name}={number}" for name, number in numbers.items()]


def form_for(channels: int, side: int, width: int) -> Form:
    """The form for images of a width, which leaves few columns over."""
    return Form(channels // 2, side, min((7, 8), key=lambda columns: -width % columns))


launch = FormLauncher(FILES, "depthwise_convolution", THREADS)


class DepthwiseConvolution(nn.Module):
    """conv(x).

    Args:
        conv: one that `suits`; not changed.

    Attributes:
        by_kernel: whether the kernel computes it where it can; see `let_run`.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv, self.by_kernel = conv, False
        weight = conv.weight.detach()
        # No buffers: the kernel's types do not follow those of the network.
        self.packed = weight.flatten(1).t().contiguous().half()
        bias = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach()
        self.bias = bias.float().clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_kernel and _fits(x):
            return self._by_kernel(x)
        out: torch.Tensor = self.conv(x)
        return out

    def _by_kernel(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = depthwise_convolution(x, self.packed, self.bias)
        return out

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.packed, self.bias = moved(self.packed, fn), moved(self.bias, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel compute it if it can; if it is wrong, with a warning.

        Args:
            images: on the network's device.
            dtype: of the network, which is still in float32.
        """
        if dtype != torch.float16 or not can_compile(images.device):
            return
        count, *size = COMPARED
        generator = torch.Generator().manual_seed(0)
        some = torch.randn(count, self.conv.in_channels, *size, generator=generator)
        x = some.to(images.device).half().contiguous(memory_format=torch.channels_last)
        self.by_kernel = agrees(
            lambda: self._by_kernel(x), lambda: self.conv(x.float()), "depthwise convolutions"
        )


def _fits(x: torch.Tensor) -> bool:
    """Whether the kernel can read a batch."""
    return (
        x.ndim == 4
        and x.dtype == torch.float16
        and 0 < x.numel() < 2**31
        and x.is_contiguous(memory_format=torch.channels_last)
    )


@operation
def depthwise_convolution(
    x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """A depthwise convolution that keeps the size.

    Args:
        x: float16 (N, C, H, W), channels-last, C even.
        weights: float16 (side * side, C).
        bias: float32 (C,).
    """
    count, channels, high, wide = x.shape
    side = round(len(weights) ** 0.5)
    if not _fits(x) or side not in SIDES or channels % 2:
        raise ValueError(f"not float16 of an even number of channels, channels-last: {x.shape}")
    if weights.shape != (side * side, channels) or bias.shape != (channels,):
        raise ValueError(f"weights of shape {weights.shape} and a bias of shape {bias.shape}")
    if weights.dtype != torch.float16 or bias.dtype != torch.float32:
        raise ValueError(f"weights in {weights.dtype} and a bias in {bias.dtype}")
    if x.data_ptr() % 4:  # a view that begins between two pairs of channels
        x = x.clone()
    out = torch.empty_like(x)
    form = form_for(channels, side, wide)
    every = form.pairs * -(-wide // form.columns) * -(-high // ROWS) * count
    arguments: list[Argument] = [x, weights.contiguous(), bias, out, high, wide, every]
    launch(form, -(-every // THREADS), arguments)
    return out


@fake_of(depthwise_convolution)
def _like(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def suits(part: nn.Module | None) -> bool:
    """Whether the kernel can compute a module."""
    # The exact type: a subclass may do something else with its weight.
    if type(part) is not nn.Conv2d or has_hooks(part):
        return False
    side = part.kernel_size[0]
    return (
        part.in_channels == part.out_channels == part.groups
        and part.in_channels % 2 == 0
        and part.kernel_size == (side, side)
        and side in SIDES
        and part.padding in ((side // 2, side // 2), "same")
        and (part.stride, part.dilation, part.padding_mode) == ((1, 1), (1, 1), "zeros")
    )


def fuse_depthwise(traced: fx.GraphModule) -> int:
    """Replace depthwise convolutions of a traced network; returns how many."""
    parts = dict(traced.named_modules())
    found = [name for name in only_called(traced) if suits(parts[name])]
    for name in found:
        conv = parts[name]
        assert isinstance(conv, nn.Conv2d)
        replace_part(traced, name, DepthwiseConvolution(conv))
    return len(found)
