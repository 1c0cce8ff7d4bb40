"""relu(conv(x) + shortcut) as one operation: one call of cuDNN where it has a kernel for it.

The operation is registered with torch, so that torch's compiler takes it as it is and compiles
what stands around it.
"""

import torch
from torch import nn
from torch.nn import functional

from sween.errors import is_out_of_memory

_UNSUPPORTED = set[tuple[object, ...]]()
"""Convolutions for which cuDNN has no kernel, as a first call found: it is asked once."""


class FusedConvolution(nn.Module):
    """relu(conv(x)), or relu(conv(x) + shortcut), by one call of cuDNN where that is possible.

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


@torch.library.custom_op("sween::convolution_relu", mutates_args=())
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
    """See `FusedConvolution`; without cuDNN the operations run one after the other."""
    geometry = stride, padding, dilation, groups
    if not has_cudnn(x) or (shortcut is not None and not _fits(shortcut, x, weight, *geometry[:3])):
        return _one_by_one(x, shortcut, weight, bias, stride, padding, dilation, groups)
    asked = (x.dtype, x.device, x.shape, weight.shape, shortcut is None, *map(str, geometry))
    if asked not in _UNSUPPORTED:
        try:
            if shortcut is None:
                return torch.cudnn_convolution_relu(x, weight, bias, *geometry)
            return torch.cudnn_convolution_add_relu(x, weight, shortcut, 1.0, bias, *geometry)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            _UNSUPPORTED.add(asked)
    return _one_by_one(x, shortcut, weight, bias, stride, padding, dilation, groups)


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
convolution_relu.register_fake(_one_by_one)


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
