"""3x3 convolutions of 16 and 32 channels with custom kernels, which libraries are slow at.

The CIFAR ResNets have such convolutions in their first two stages. Kernels are for all three passes
of 16 channels, and for the gradient in the weights of 32; the rest is cuDNN's.
`use_narrow_convolutions` lets such layers use the operators of this file where their inputs are
bfloat16, on a GPU. The operators are differentiable, and are compiled and captured like any other.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument, can_compile, compile_kernel, read_source
from sween.cuda.compiler import COMPILING
from sween.errors import warn_fallback

SIZES = {16: 32, 32: 16}
"""Height and width of the images, by the number of channels."""

BLOCKS_PER_PROCESSOR = {"convolution": 3, "weight_gradient": 2}
"""That fit on one of the GPU's processors at a time; each goes on with image after image."""

THREADS = 256

FILES = ("convolution.cu", "narrow_convolution.cu")


class Launch(Protocol):
    """Runs a kernel; `blocks` is the most that run at a time."""

    def blocks(self, kernel: str, device: torch.device) -> int: ...

    def __call__(
        self, kernel: str, channels: int, blocks: int, arguments: Sequence[Argument]
    ) -> None: ...


def definitions(kernel: str, channels: int) -> list[str]:
    """Compiler options."""
    if kernel == "convolution":
        return ["-DBRAIN", "-DFORWARD"]
    return ["-DBRAIN", f"-DCHANNELS={channels}", f"-DSIZE={SIZES[channels]}"]


def shared_bytes(kernel: str, channels: int) -> int:
    """Two images with borders; or one, and the gradients of its outputs."""
    size = SIZES[channels]
    image = (size + 2) * (size + 2) * channels * 2
    return image + (image if kernel == "convolution" else size * size * channels * 2)


class _Launcher:
    def blocks(self, kernel: str, device: torch.device) -> int:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return int(processors) * BLOCKS_PER_PROCESSOR[kernel]

    def __call__(
        self, kernel: str, channels: int, blocks: int, arguments: Sequence[Argument]
    ) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            run = self._compiled(kernel, channels, torch.cuda.current_device())
            run(
                grid=(blocks, 1, 1),
                block=(THREADS, 1, 1),
                args=list(arguments),
                shared_mem=shared_bytes(kernel, channels),
            )

    @functools.cache  # noqa: B019  # there is one launcher
    def _compiled(self, kernel: str, channels: int, device_index: int) -> Any:
        with COMPILING:
            source = read_source("sween.training", FILES)
            compiled = compile_kernel(source, kernel, definitions(kernel, channels))
            compiled.set_shared_memory_config(shared_bytes(kernel, channels))
        return compiled


launch: Launch = _Launcher()


@torch.library.custom_op("sween::narrow_convolution", mutates_args=())
def narrow_convolution(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A 3x3 convolution that keeps the size.

    Args:
        images: bfloat16 (N, C, S, S), channels-last, of the `SIZES`.
        weight: float32 (C, C, 3, 3).
    """
    return _convolved(images, weight, transposed=False)


@torch.library.custom_op("sween::narrow_image_gradient", mutates_args=())
def image_gradient(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of `narrow_convolution` with respect to its images."""
    return _convolved(gradient, weight, transposed=True)


@torch.library.custom_op("sween::narrow_weight_gradient", mutates_args=())
def weight_gradient(images: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Of `narrow_convolution` with respect to its weight, float32."""
    channels, count = images.shape[1], len(images)
    images = images.contiguous(memory_format=torch.channels_last)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    blocks = min(count, launch.blocks("weight_gradient", images.device))
    partial = images.new_empty(blocks, channels, channels, 3, 3, dtype=torch.float32)
    arguments: list[Argument] = [images, gradient, partial, count, blocks]
    launch("weight_gradient", channels, blocks, arguments)
    return partial.sum(dim=0)


def _convolved(images: torch.Tensor, weight: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    images = images.contiguous(memory_format=torch.channels_last)
    channels, count = images.shape[1], len(images)
    if channels != 16:
        turned = weight.transpose(0, 1).flip(2, 3) if transposed else weight
        turned = turned.to(images.dtype, memory_format=torch.channels_last)
        return functional.conv2d(images, turned, padding=1)
    outputs = torch.empty_like(images)
    blocks = min(count, launch.blocks("convolution", images.device))
    arguments: list[Argument] = [
        images,
        weight.contiguous(),
        int(transposed),
        outputs,
        count,
        blocks,
    ]
    launch("convolution", channels, blocks, arguments)
    return outputs


@narrow_convolution.register_fake
@image_gradient.register_fake
def _like_images(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(images, memory_format=torch.channels_last)


@weight_gradient.register_fake
def _like_weight(images: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    channels = images.shape[1]
    return images.new_empty(channels, channels, 3, 3, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    images, weight = ctx.saved_tensors
    of_images, of_weight = ctx.needs_input_grad
    return (
        image_gradient(gradient, weight) if of_images else None,
        weight_gradient(images, gradient) if of_weight else None,
    )


narrow_convolution.register_autograd(_backward, setup_context=_save)


class _Narrow(nn.Conv2d):
    """A layer whose class was changed to this one; its parameters and name stay."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        size = SIZES[self.in_channels]
        if images.dtype != torch.bfloat16 or images.shape[2:] != (size, size):
            return super().forward(images)
        outputs: torch.Tensor = narrow_convolution(
            images.contiguous(memory_format=torch.channels_last), self.weight
        )
        return outputs


def use_narrow_convolutions(model: nn.Module, device: torch.device) -> int:
    """Let the layers that the kernels suit use them; returns how many there are.

    Where the kernels cannot run, or compute something else than torch, the layers stay as they are,
    with a warning in the second case.
    """
    layers = [part for part in model.modules() if isinstance(part, nn.Conv2d) and _suits(part)]
    if not layers or not can_compile(device, shared_bytes("convolution", 16)):
        return 0
    try:
        for channels in {layer.in_channels for layer in layers}:
            check_kernels(channels, device)
    except Exception as error:  # compilers fail in many ways, and torch always works
        warn_fallback("training cannot use custom kernels", error)
        return 0
    for layer in layers:
        layer.__class__ = _Narrow
    return len(layers)


def _suits(part: nn.Conv2d) -> bool:
    return (
        type(part) is nn.Conv2d
        and part.in_channels == part.out_channels
        and part.in_channels in SIZES
        and part.kernel_size == (3, 3)
        and part.stride == part.padding == part.dilation == (1, 1)
        and part.groups == 1
        and part.padding_mode == "zeros"
        and part.bias is None
    )


def check_kernels(channels: int, device: torch.device) -> None:
    """Refuse kernels whose outputs or gradients are wrong: whole numbers must come out exactly."""
    size, generator = SIZES[channels], torch.Generator().manual_seed(0)
    shape = (3, channels, size, size)
    images, vector = (
        torch.randint(-2, 3, shape, generator=generator).to(device).bfloat16() for _ in range(2)
    )
    images = images.contiguous(memory_format=torch.channels_last)
    weight = torch.zeros(channels, channels, 3, 3)
    places = torch.randint(0, weight[0].numel(), (channels, 4), generator=generator)
    weight.view(channels, -1).scatter_(1, places, 1.0)
    found = []
    for dtype, convolve in (
        (torch.bfloat16, narrow_convolution),
        (torch.float64, functools.partial(functional.conv2d, padding=1)),
    ):
        own = images.to(dtype).requires_grad_()
        weights = weight.to(device, torch.promote_types(dtype, torch.float32)).requires_grad_()
        with torch.enable_grad():
            outputs = convolve(own, weights)
            gradients = torch.autograd.grad(outputs, (own, weights), vector.to(dtype))
        found.append([each.double() for each in (outputs, *gradients)])
    if not all(map(torch.equal, *found)):
        raise RuntimeError("they compute something else than torch")
