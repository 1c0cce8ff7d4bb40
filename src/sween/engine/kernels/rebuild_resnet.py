"""Builds the CIFAR ResNet that an expression of the images describes, with the same weights.

Read from the logits back to the image: a linear layer of the means, residual blocks, the first
convolution. The blocks of a stage, and the width, follow from what is found.
"""

import dataclasses
import math

import torch
from torch import nn

from sween.engine.kernels.cifar_resnet import WIDTHS
from sween.engine.kernels.resnet_expressions import (
    Convolution,
    Expression,
    Image,
    Logits,
    NotRecognised,
    Relu,
    Subsampled,
    Sum,
    channels_of,
)
from sween.models.cifar_resnet import BasicBlock, CifarResNet
from sween.models.normalize import Normalize

STAGES = 3
FIRST_CHANNELS, LAST_CHANNELS = 16, 64
"""Of the first and the last stage, for each unit of width."""


@dataclasses.dataclass(frozen=True)
class _Block:
    first: Convolution
    second: Convolution
    shortcut: Convolution | None


def rebuilt(logits: Expression) -> nn.Sequential:
    """A `Normalize` and a `CifarResNet` with these logits; raises `NotRecognised`."""
    assert isinstance(logits, Logits)
    blocks, rest = list[_Block](), logits.of
    while isinstance(rest, Relu) and isinstance(rest.of, Sum):
        block = _block(rest.of)
        blocks.insert(0, block)
        rest = block.first.of
    per_stage, uneven = divmod(len(blocks), STAGES)
    if not blocks or uneven or not isinstance(rest, Relu):
        raise NotRecognised(f"{len(blocks)} blocks after something else than a convolution")
    image = rest.of.of if isinstance(rest.of, Convolution) else None
    if not isinstance(image, Image):
        raise NotRecognised("no convolution of the image")
    width, uneven = divmod(channels_of(rest), FIRST_CHANNELS)
    if uneven or width not in WIDTHS:
        raise NotRecognised(f"{channels_of(rest)} channels of the first convolution")
    model = CifarResNet(6 * per_stage + 2, len(logits.weight), width=width).eval()
    _put(rest.of, model.conv1, model.bn1)
    for block, own in zip(blocks, [*model.stage1, *model.stage2, *model.stage3], strict=True):
        assert isinstance(own, BasicBlock)
        _put(block.first, own.conv1, own.bn1)
        _put(block.second, own.conv2, own.bn2)
        if isinstance(own.shortcut, nn.Sequential):
            _put(block.shortcut, *own.shortcut)
        elif block.shortcut is not None:
            raise NotRecognised("a convolution where the shortcut of the paper is the identity")
    _copy(model.fc.weight, logits.weight)
    _copy(model.fc.bias, logits.bias)
    if not bool((image.scale != 0).all()):
        raise NotRecognised("a channel that is not used")
    mean, std = -image.shift / image.scale, 1 / image.scale
    return nn.Sequential(Normalize(mean.tolist(), std.tolist()), model).eval()


def _block(total: Sum) -> _Block:
    """Two convolutions with a relu between them, added to a shortcut of their input."""
    for second, around in ((total.one, total.other), (total.other, total.one)):
        if not isinstance(second, Convolution) or not isinstance(second.of, Relu):
            continue
        first = second.of.of
        if isinstance(first, Convolution) and first.weight.shape[-1] == 3:
            return _Block(first, second, _shortcut(around, first.of))
    raise NotRecognised("a sum that is not a residual block")


def _shortcut(around: Expression, start: Expression) -> Convolution | None:
    """As a 1x1 convolution of the block's input, or None for the input itself."""
    if around is start:
        return None
    if isinstance(around, Convolution) and around.of is start:
        return around
    if not isinstance(around, Subsampled) or around.of is not start:
        raise NotRecognised("a shortcut from elsewhere")
    if around.steps[0] != around.steps[1]:
        raise NotRecognised("another step along rows than along columns")
    inside = channels_of(start)
    total = around.before + inside + around.after
    like = _first_weight(start)
    weight = like.new_zeros(total, inside, 1, 1)
    weight[around.before : around.before + inside, :, 0, 0] = torch.eye(
        inside, dtype=like.dtype, device=like.device
    )
    return Convolution(start, weight, like.new_zeros(total), around.steps[0], 0)


def _first_weight(x: Expression) -> torch.Tensor:
    while not isinstance(x, Convolution):
        if not isinstance(x, Relu | Sum):
            raise NotRecognised("activations of no convolution")
        x = x.of if isinstance(x, Relu) else x.one
    return x.weight


def _put(found: Expression | None, conv: nn.Module, norm: nn.Module) -> None:
    """Give a layer of the rebuilt network the found weights; its batch norm only adds the bias."""
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    if not isinstance(found, Convolution):
        raise NotRecognised("no convolution where the paper's network has one")
    if (found.stride, found.padding) != (conv.stride[0], conv.padding[0]):
        raise NotRecognised("another stride or padding")
    _copy(conv.weight, found.weight)
    assert norm.running_var is not None
    norm.running_var.fill_(1 - norm.eps)  # the weight is 1, the running mean 0
    _copy(norm.bias, found.bias)


def _copy(own: torch.Tensor, found: torch.Tensor) -> None:
    if own.shape != found.shape or not math.isfinite(float(found.abs().sum())):
        raise NotRecognised(f"weights of shape {tuple(found.shape)}, not {tuple(own.shape)}")
    own.copy_(found)
