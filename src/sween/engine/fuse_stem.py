"""Finds the first layers that `Stem` computes together in a traced network."""

import itertools
import operator

import torch
from torch import fx, nn

from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.stem import Stem, suits
from sween.engine.tracing import has_hooks

NAME = "_fused_stem"
"""Of the module in the traced network, unless it has one of this name."""

_DIFFERENCES = (operator.sub, torch.sub)
_QUOTIENTS = (operator.truediv, torch.div)


def fuse_stem(traced: fx.GraphModule) -> int:
    """Fuse the layers between the images and the first max pool; returns 1 if there are such.

    Args:
        traced: its convolutions are fused with the relus after them.
    """
    parts = dict(traced.named_modules())
    for pool in traced.graph.nodes:
        if not _is_max_pool(pool, parts):
            continue
        conv = pool.args[0]
        part = parts.get(str(conv.target)) if conv.op == "call_module" else None
        if not isinstance(part, FusedConvolution) or len(conv.args) != 1 or not suits(part.conv):
            continue
        found = _normalised(traced, conv.args[0])
        if found is None or not _in_a_row(conv, pool):
            continue
        images, mean, std, nodes = found
        if not _in_a_row(images, *nodes, conv):
            continue
        name = NAME
        while hasattr(traced, name):
            name += "_"
        traced.add_submodule(name, Stem(part, mean, std))
        with traced.graph.inserting_after(pool):
            node = traced.graph.call_module(name, (images,))
        pool.replace_all_uses_with(node)
        constants = [own.args[1] for own in nodes]
        for old in (pool, conv, *reversed(nodes), *constants):
            if not old.users:  # others may read the constants, too
                traced.graph.erase_node(old)
        return 1
    return 0


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
    traced: fx.GraphModule, node: object
) -> tuple[fx.Node, torch.Tensor | None, torch.Tensor | None, list[fx.Node]] | None:
    """The network's images, mean, std, and the nodes that normalise by them, if this is that."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "placeholder":
        return node, None, None, []
    if node.op != "call_function" or node.target not in _QUOTIENTS or node.kwargs:
        return None
    difference, std = node.args[0], _constant(traced, node.args[1])
    if not isinstance(difference, fx.Node) or difference.target not in _DIFFERENCES:
        return None
    if difference.op != "call_function" or difference.kwargs:
        return None
    images, mean = difference.args[0], _constant(traced, difference.args[1])
    if not isinstance(images, fx.Node) or images.op != "placeholder" or mean is None or std is None:
        return None
    return images, mean, std, [difference, node]


def _constant(traced: fx.GraphModule, node: object) -> torch.Tensor | None:
    """A number for each channel, or for all of them."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    path, _, name = str(node.target).rpartition(".")
    value = getattr(traced.get_submodule(path), name)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    shape = tuple(value.shape)
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    return value.detach().view(shape) if shape in ((3, 1, 1), (1, 1, 1), (1,), ()) else None
