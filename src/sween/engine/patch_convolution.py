"""Convolutions whose windows do not overlap, as one matrix product.

The first layer of a vision transformer cuts the image into patches; ConvNeXt shrinks its maps in
the same way. cuDNN's kernels for such convolutions are several times slower than the product of
the patches with the weights.
"""

from typing import TypeGuard

import torch
from torch import nn
from torch.nn import functional

from sween.engine.tracing import has_hooks


class PatchConvolution(nn.Conv2d):
    """A convolution whose stride is the size of its kernel, without padding."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        high, wide = self.kernel_size
        rows, columns = input.shape[-2] // high, input.shape[-1] // wide
        # What is left over at the lower and right edge belongs to no window.
        pixels = input[..., : rows * high, : columns * wide].permute(0, 2, 3, 1)
        patches = pixels.reshape(-1, rows, high, columns, wide, self.in_channels).transpose(2, 3)
        weight = self.weight.permute(0, 2, 3, 1)
        out = functional.linear(patches.flatten(3), weight.flatten(1), self.bias)
        return out.permute(0, 3, 1, 2)


def use_patches(module: nn.Module) -> None:
    """Compute such convolutions of a module, which is changed, as matrix products."""
    for part in module.modules():
        if has_patches(part):
            part.__class__ = PatchConvolution


def has_patches(part: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    """Whether a module is a convolution whose windows do not overlap."""
    # The exact type: a subclass may do something else with its weight.
    return (
        type(part) is nn.Conv2d
        and part.kernel_size == part.stride != (1, 1)
        and part.padding in ((0, 0), "valid")
        and part.dilation == (1, 1)
        and part.groups == 1
        and not has_hooks(part)
    )
