"""Finds the first layers of a traced network that `FIRST_LAYERS` compute."""

import itertools
import operator

import torch
from torch import fx, nn

from sween.engine import normalized_convolution, stem
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.image_patches import ImagePatches
from sween.engine.normalized_convolution import NormalizedConvolution
from sween.engine.patch_convolution import has_patches
from sween.engine.stem import Stem
from sween.engine.tracing import add_part, constant_of, has_hooks

NAME = "_first_layers"
"""Of the module in the traced network, unless it has one of this name."""

FIRST_LAYERS = (Stem, NormalizedConvolution, ImagePatches)

_DIFFERENCES = (operator.sub, torch.sub)
_QUOTIENTS = (operator.truediv, torch.div)


def fuse_first_layers(traced: fx.GraphModule) -> int:
    """Fuse the images' normalisation with the layer after it, and more; returns 1 if it can.

    Args:
        traced: its convolutions are fused with the relus after them.
    """
    parts = dict(traced.named_modules())
    for conv in traced.graph.nodes:
        part = parts.get(str(conv.target)) if conv.op == "call_module" else None
        if len(conv.args) != 1 or not (isinstance(part, FusedConvolution) or has_patches(part)):
            continue
        first = part.conv if isinstance(part, FusedConvolution) else part
        found = _normalised(traced, conv.args[0], first.in_channels)
        if found is None:
            continue
        images, mean, std, nodes = found
        if not _in_a_row(images, *nodes, conv):
            return 0
        last, fused = conv, _fused(conv, part, parts, mean, std)
        if fused is None:
            return 0
        if isinstance(fused, Stem):
            (last,) = conv.users
        name = add_part(traced, parts, NAME, fused)
        with traced.graph.inserting_after(last):
            node = traced.graph.call_module(name, (images,))
        last.replace_all_uses_with(node)
        constants = [own.args[1] for own in nodes]
        for old in dict.fromkeys((last, conv, *reversed(nodes), *constants)):
            if not old.users:  # others may read the constants, too
                traced.graph.erase_node(old)
        return 1
    return 0


def _fused(
    conv: fx.Node,
    part: FusedConvolution | nn.Conv2d,
    parts: dict[str, nn.Module],
    mean: torch.Tensor | None,
    std: torch.Tensor | None,
) -> Stem | NormalizedConvolution | ImagePatches | None:
    """A convolution with the normalisation before it and perhaps the pool after it."""
    users = [*conv.users]
    if isinstance(part, nn.Conv2d):
        return ImagePatches(part, mean, std)
    if stem.suits(part.conv) and len(users) == 1 and _is_max_pool(users[0], parts):
        return Stem(part, mean, std)
    if normalized_convolution.suits(part.conv):
        return NormalizedConvolution(part, mean, std)
    return None


def _is_max_pool(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    part = parts.get(str(node.target)) if node.op == "call_module" else None
    # The exact type: a subclass may do something else.
    if type(part) is not nn.MaxPool2d or has_hooks(part) or len(node.args) != 1 or node.kwargs:
        return False
    geometry = (part.kernel_size, part.stride, part.padding, part.dilation)
    pairs = [own if isinstance(own, tuple) else (own, own) for own in geometry]
    plain = not part.ceil_mode and not part.return_indices
    return plain and pairs == [(3, 3), (2, 2), (1, 1), (1, 1)] and isinstance(node.args[0], fx.Node)


def _in_a_row(*nodes: fx.Node) -> bool:
    """Whether each is all that the one before it is for."""
    return all([*one.users] == [other] for one, other in itertools.pairwise(nodes))


def _normalised(
    traced: fx.GraphModule, node: object, channels: int
) -> tuple[fx.Node, torch.Tensor | None, torch.Tensor | None, list[fx.Node]] | None:
    """The network's images, mean, std, and the nodes that normalise by them, if this is that."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "placeholder":
        return node, None, None, []
    if node.op != "call_function" or node.target not in _QUOTIENTS or node.kwargs:
        return None
    difference, std = node.args[0], _constant(traced, node.args[1], channels)
    if not isinstance(difference, fx.Node) or difference.target not in _DIFFERENCES:
        return None
    if difference.op != "call_function" or difference.kwargs:
        return None
    images, mean = difference.args[0], _constant(traced, difference.args[1], channels)
    if not isinstance(images, fx.Node) or images.op != "placeholder" or mean is None or std is None:
        return None
    return images, mean, std, [difference, node]


def _constant(traced: fx.GraphModule, node: object, channels: int) -> torch.Tensor | None:
    """A number for each channel, or for all of them."""
    value = constant_of(traced, node)
    if value is None or not value.is_floating_point():
        return None
    shape = tuple(value.shape)
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    fits = shape in ((channels, 1, 1), (1, 1, 1), (1,), ())
    return value.view(shape) if fits else None
