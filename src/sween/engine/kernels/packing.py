"""Packs a CIFAR ResNet's parameters in the order in which `cifar_resnet.cu` reads them."""

import copy
import dataclasses
from collections.abc import Iterable
from typing import Self

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from sween.models.cifar_resnet import BasicBlock, CifarResNet


def pack_weights(weight: torch.Tensor) -> torch.Tensor:
    """Weights (out, in, h, w) of a convolution as float16 fragments, flat.

    A tensor-core instruction takes 16 input by 8 output channels of one tap; a lane reads its
    weights of two such tiles in one 16-byte load.

    Args:
        weight: with multiples of 16 input and output channels.
    """
    out, into, height, width = weight.shape
    tiles = weight.detach().half().reshape(out // 16, 2, 8, into // 16, 2, 4, 2, height, width)
    pair, tile, n, depth, half, k, which, y, x = range(9)
    return tiles.permute(x, depth, y, pair, n, k, tile, half, which).flatten()


def pack_first(weight: torch.Tensor) -> torch.Tensor:
    """`pack_weights` for the first convolution: with few channels, two taps share a product."""
    out, into = weight.shape[:2]
    padded = functional.pad(weight.detach().half().flatten(2), (0, 1, 0, 8 - into))
    # As if each pair of taps were a single tap with 16 channels.
    pairs = padded.reshape(out, 8, 5, 2).permute(0, 3, 1, 2).reshape(out, 16, 5, 1)
    return pack_weights(pairs)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One kernel's weights and biases, and how many convolutions keep its number of channels.

    The biases of integers come with their scales.
    """

    weights: torch.Tensor
    bias: torch.Tensor
    convolutions: int

    def to(self, device: torch.device) -> Self:
        weights, bias = self.weights.to(device), self.bias.to(device)
        return dataclasses.replace(self, weights=weights, bias=bias)


def pack_stages(model: CifarResNet) -> tuple[Stage, Stage, Stage]:
    """The parameters of the three kernels, batch norm folded in; the model in evaluation mode.

    A kernel ends with the first convolution and the shortcut of the next stage's first block, so
    the next kernel begins with that block's second convolution.
    """
    blocks = [[*stage] for stage in (model.stage1, model.stage2, model.stage3)]
    first = fold(model.conv1, model.bn1)
    own = [conv for block in blocks[0] for conv in block_convs(block)]
    stages = [_stage([first], own, downsampling_convs(blocks[1][0]))]
    for stage in (1, 2):
        own = [conv for block in blocks[stage] for conv in block_convs(block)][1:]
        stages.append(_stage([], own, downsampling_convs(blocks[2][0]) if stage == 1 else []))
    return stages[0], stages[1], stages[2]


def _stage(first: list[nn.Conv2d], own: list[nn.Conv2d], last: list[nn.Conv2d]) -> Stage:
    packed = [pack_first(conv.weight) for conv in first]
    packed += [pack_weights(conv.weight) for conv in (*own, *last)]
    return Stage(torch.cat(packed), _biases((*first, *own, *last)), len(own))


def _biases(convolutions: Iterable[nn.Conv2d]) -> torch.Tensor:
    biases = [conv.bias for conv in convolutions]
    return torch.cat([bias.float() for bias in biases if bias is not None])


def width_of(model: CifarResNet) -> int:
    """How many times the channels of the paper's networks."""
    return model.conv1.out_channels // 16


def fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """A convolution with its batch norm, in evaluation mode."""
    return fuse_conv_bn_eval(copy.deepcopy(conv).eval(), copy.deepcopy(norm).eval())


def block_convs(block: BasicBlock) -> list[nn.Conv2d]:
    """The two 3x3 convolutions of a block."""
    return [fold(block.conv1, block.bn1), fold(block.conv2, block.bn2)]


def downsampling_convs(block: BasicBlock) -> list[nn.Conv2d]:
    """The convolutions of a block that read the previous stage's output."""
    assert isinstance(block.shortcut, nn.Sequential)
    conv, norm = block.shortcut
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    return [fold(block.conv1, block.bn1), fold(conv, norm)]
