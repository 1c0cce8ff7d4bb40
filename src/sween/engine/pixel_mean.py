"""The mean over the pixels of images, by a custom kernel where it can run.

torch's kernels for it are several times slower than reading the images once.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.nn import functional

from sween.cuda import Argument, can_compile, compile_kernel, read_source
from sween.cuda.compiler import COMPILING
from sween.engine.added_convolutions import AddedConvolutions
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.layer_kernels import agrees
from sween.engine.tracing import has_hooks

FILES = ("convolution.cu", "pixel_mean.cu")
THREADS = 256
PLANE = 8
"""Channels that a thread has."""

COMPARED = (3, 520, 5, 7)
"""Shape of the images on which the kernel is compared with torch."""


class Launch(Protocol):
    """Runs the kernel."""

    def __call__(self, blocks: int, arguments: Sequence[Argument]) -> None: ...


class _Launcher:
    def __call__(self, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._compiled(torch.cuda.current_device())(
                grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=list(arguments)
            )

    @functools.cache  # noqa: B019  # there is one launcher
    def _compiled(self, device_index: int) -> Any:
        with COMPILING:
            return compile_kernel(read_source("sween.engine", FILES), "pixel_mean")


launch: Launch = _Launcher()


class PixelMean(nn.Module):
    """The mean over the last two of four dimensions.

    Args:
        keepdim: whether the result has them too, of size 1.

    Attributes:
        by_kernel: whether the kernel computes it where it can; see `let_run`.
    """

    def __init__(self, *, keepdim: bool) -> None:
        super().__init__()
        self.keepdim, self.by_kernel = keepdim, False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.by_kernel or not _fits(images):
            return images.mean(dim=(2, 3), keepdim=self.keepdim)
        out: torch.Tensor = pixel_mean(images)
        return out[:, :, None, None] if self.keepdim else out

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel compute it if it can; if it is wrong, with a warning.

        Args:
            images: on the network's device.
            dtype: of the network.
        """
        if dtype != torch.float16 or not can_compile(images.device):
            return
        generator = torch.Generator().manual_seed(0)
        some = torch.rand(COMPARED, generator=generator).to(images.device, torch.float16)
        some = some.contiguous(memory_format=torch.channels_last)
        self.by_kernel = agrees(
            lambda: pixel_mean(some), lambda: some.float().mean(dim=(2, 3)), "means over pixels"
        )


def _fits(images: torch.Tensor) -> bool:
    return (
        images.ndim == 4
        and images.dtype == torch.float16
        and images.shape[1] % PLANE == 0
        and 0 < images.numel() < 2**31
        and images.is_contiguous(memory_format=torch.channels_last)
    )


@torch.library.custom_op("sween::pixel_mean", mutates_args=())
def pixel_mean(images: torch.Tensor) -> torch.Tensor:
    """(N, C) of float16 images (N, C, H, W), channels-last, C a multiple of 8."""
    if not _fits(images):
        raise ValueError(f"not float16, channels-last and of 8 n channels: {images.shape}")
    count, channels, high, wide = images.shape
    out = images.new_empty(count, channels)
    planes = channels // PLANE
    every = count * planes
    launch(-(-every // THREADS), [images, out, high * wide, planes, every])
    return out


@pixel_mean.register_fake
def _like(images: torch.Tensor) -> torch.Tensor:
    return images.new_empty(images.shape[:2])


def fuse_means(traced: fx.GraphModule) -> int:
    """Put `PixelMean` in the place of means over all pixels; returns how many."""
    parts, found = dict(traced.named_modules()), 0
    for node in list(traced.graph.nodes):
        keepdim = _keeps_dimensions(node, parts)
        if keepdim is None:
            continue
        name = f"_pixel_mean_{found}"
        while hasattr(traced, name):
            name += "_"
        traced.add_submodule(name, PixelMean(keepdim=keepdim))
        with traced.graph.inserting_after(node):
            mean = traced.graph.call_module(name, (node.args[0],))
        node.replace_all_uses_with(mean)
        traced.graph.erase_node(node)
        found += 1
    return found


def _keeps_dimensions(node: fx.Node, parts: dict[str, nn.Module]) -> bool | None:
    """Whether a mean over all pixels of a convolution's output keeps them; None: not such a mean.

    The output of a convolution has four dimensions, which a trace does not know of other tensors.
    """
    of = node.args[0] if node.args else None
    if not isinstance(of, fx.Node) or of.op != "call_module":
        return None
    if not isinstance(parts.get(str(of.target)), _CONVOLUTIONS):
        return None
    if node.op == "call_module":
        part = parts[str(node.target)]
        pools = type(part) is nn.AdaptiveAvgPool2d and not has_hooks(part)
        plain = len(node.args) == 1 and not node.kwargs
        return True if pools and plain and _is_one(getattr(part, "output_size", None)) else None
    arguments = (*node.args[1:], *node.kwargs.values())
    if node.op == "call_function" and node.target is functional.adaptive_avg_pool2d:
        return True if len(arguments) == 1 and _is_one(arguments[0]) else None
    if (node.op, node.target) not in (("call_method", "mean"), ("call_function", torch.mean)):
        return None
    options = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
    dim, keepdim = options.pop("dim", None), options.pop("keepdim", False)
    over = isinstance(dim, list | tuple) and {own for own in dim if isinstance(own, int)}
    if options or over not in ({2, 3}, {-1, -2}, {2, -1}, {3, -2}) or len(dim) != 2:  # type: ignore[arg-type]
        return None
    return keepdim if isinstance(keepdim, bool) else None


_CONVOLUTIONS = (nn.Conv2d, FusedConvolution, AddedConvolutions)


def _is_one(size: object) -> bool:
    return size in (1, (1, 1), [1, 1])
