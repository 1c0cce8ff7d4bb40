"""relu(conv(x) + shortcut) as one operation: one call of cuDNN or cuBLASLt where they can do it.

The operation is registered with torch, so that torch's compiler takes it as it is and compiles
what stands around it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sween.engine.cublas_lt import is_aligned, matmul
from sween.engine.operation import fake_of, operation
from sween.errors import is_out_of_memory

_UNSUPPORTED = set[tuple[object, ...]]()
"""Convolutions for which a library has no kernel, as a first call found: it is asked once."""


class FusedConvolution(nn.Module):
    """relu(conv(x)), or relu(conv(x) + shortcut), by one call of a library where that is possible.

    Args:
        conv: whose weights are used; not changed.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor | None = None) -> torch.Tensor:
        conv = self.conv
        assert not isinstance(conv.padding, str)  # such convolutions are not fused
        geometry = list(conv.stride), list(conv.padding), list(conv.dilation), conv.groups
        x = x.to(conv.weight.dtype)  # as autocast does for a convolution
        fused: torch.Tensor = convolution_relu(x, shortcut, conv.weight, conv.bias, *geometry)
        return fused


@operation
def convolution_relu(
    x: torch.Tensor,
    shortcut: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """See `FusedConvolution`; without the libraries the operations run one after the other."""
    geometry = stride, padding, dilation, groups
    arguments = x, shortcut, weight, bias
    asked = (x.dtype, x.device, x.shape, weight.shape, shortcut is None, *map(str, geometry))
    for compute in _ways(*arguments, *geometry):
        if (compute, asked) in _UNSUPPORTED:
            continue
        try:
            return compute(*arguments, *geometry)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            _UNSUPPORTED.add((compute, asked))
    return _one_by_one(*arguments, *geometry)


Way = Callable[..., torch.Tensor]


def _ways(
    x: torch.Tensor,
    shortcut: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *geometry: Any,
) -> Iterator[Way]:
    """Calls of libraries that compute it, the fastest first."""
    if not has_cudnn(x):
        return
    if shortcut is not None and not _fits(shortcut, x, weight, *geometry[:3]):
        return
    stride, padding, _, groups = geometry
    is_product = [*weight.shape[2:], *stride, *padding, groups] == [1, 1, 1, 1, 0, 0, 1]
    images = [x] if shortcut is None else [x, shortcut]
    if is_product and _is_channels_last(*images) and is_aligned(*images, weight, bias):
        yield _by_cublas
    yield _by_cudnn


def _by_cudnn(
    x: torch.Tensor,
    shortcut: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *geometry: Any,
) -> torch.Tensor:
    if shortcut is None:
        return torch.cudnn_convolution_relu(x, weight, bias, *geometry)
    return torch.cudnn_convolution_add_relu(x, weight, shortcut, 1.0, bias, *geometry)


def _is_channels_last(*images: torch.Tensor) -> bool:
    """Whether the channels of a pixel lie next to each other, as the rows of a matrix."""
    return all(own.is_contiguous(memory_format=torch.channels_last) for own in images)


def _by_cublas(
    x: torch.Tensor,
    shortcut: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *_geometry: Any,
) -> torch.Tensor:
    """A 1x1 convolution as a product of the pixels' channels with the weights.

    cuDNN's kernels with a shortcut take up to twice as long, those without a few percent longer.
    """
    added = None if shortcut is None else _rows(shortcut)
    out = matmul(_rows(x), weight.flatten(1), bias, added, relu=True)
    return out.view(len(x), *x.shape[2:], len(weight)).permute(0, 3, 1, 2)


def _rows(images: torch.Tensor) -> torch.Tensor:
    """A row for each pixel."""
    return images.permute(0, 2, 3, 1).flatten(0, 2)


def _one_by_one(
    x: torch.Tensor,
    shortcut: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    out = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return functional.relu(out if shortcut is None else out + shortcut)


# The compiler infers shapes and types from it.
fake_of(convolution_relu)(_one_by_one)


def has_cudnn(x: torch.Tensor) -> bool:
    """Whether cuDNN can be asked to compute with this batch."""
    cudnn = torch.backends.cudnn
    return x.is_cuda and x.ndim == 4 and bool(cudnn.enabled) and torch._C._has_cudnn


def _fits(
    shortcut: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> bool:
    """Whether a shortcut has the shape and type of the convolution's output.

    cuDNN's call checks neither, and reads past the end of a smaller one.
    """
    sides = [
        (size + 2 * added - apart * (kernel - 1) - 1) // step + 1
        for size, added, apart, kernel, step in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    wanted = (len(x), len(weight), *sides)
    return (shortcut.dtype, shortcut.device, *shortcut.shape) == (x.dtype, x.device, *wanted)
