"""shortcut + scale * linear(x) as one operation: on a GPU, in 16 bits, one call of cuBLASLt.

The residual branches of transformers and of ConvNeXt end like this, the latter with the channels
moved to another axis before the sum. A constant scale becomes part of the weights. Otherwise the
operations run one after the other.
"""

import copy
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from sween.engine.cublas_lt import TYPES, is_aligned, matmul
from sween.engine.operation import fake_of, operation
from sween.engine.tracing import (
    add_part,
    constant_of,
    has_hooks,
    may_change_between,
    summands,
)
from sween.errors import is_out_of_memory

_PRODUCTS = (operator.mul, torch.mul, "mul")
_PERMUTATIONS = (torch.permute, "permute")
_RESHAPED = ("reshape", "unsqueeze")

ROUNDING_ALLOWED = 1e-3
"""Of a row of weights with its scale in float16, relative to the row: numbers below 6e-5 lose bits,
and branches have scales as small as 1e-6."""

_UNSUPPORTED = set[tuple[object, ...]]()
"""Products for which the library has no kernel, as a first call found: it is asked once."""


class LinearAdd(nn.Module):
    """shortcut + linear(x), or shortcut + linear(x).permute(axes).

    Args:
        linear: whose weights are used; not changed.
        axes: of the permutation, all of them; None: there is none.
    """

    def __init__(self, linear: nn.Linear, axes: Sequence[int] | None) -> None:
        super().__init__()
        self.linear, self.axes = linear, None if axes is None else tuple(axes)

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        if not isinstance(shortcut, torch.Tensor):  # a number, such as the size of something
            return shortcut + self._branch(x)
        if self.axes is not None and shortcut.ndim != len(self.axes):
            return shortcut + self._branch(x)
        x = x.to(weight.dtype)  # as autocast does for a linear layer
        if self.axes is None:
            added: torch.Tensor = linear_add(x, weight, bias, shortcut)
            return added
        back = [self.axes.index(axis) for axis in range(len(self.axes))]
        added = linear_add(x, weight, bias, shortcut.permute(back))
        return added.permute(self.axes)

    def _branch(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        return out if self.axes is None else out.permute(self.axes)


@operation
def linear_add(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shortcut: torch.Tensor
) -> torch.Tensor:
    """See `LinearAdd`."""
    shape = (*x.shape[:-1], len(weight))
    asked = (x.dtype, x.device, shape, x.shape[-1])
    if asked not in _UNSUPPORTED and _readable(x, weight, bias, shortcut, shape):
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        try:
            if is_aligned(rows):
                added = shortcut.view(-1, shape[-1])
                return matmul(rows, weight, bias, added, relu=False).view(shape)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            _UNSUPPORTED.add(asked)
    return _one_by_one(x, weight, bias, shortcut)


def _readable(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    shortcut: torch.Tensor,
    shape: Sequence[int],
) -> bool:
    """Whether the library can be asked; it checks nothing itself."""
    return (
        has_product(x)
        and shortcut.dtype == x.dtype
        and shortcut.shape == shape
        and all(own.is_contiguous() for own in (weight, bias, shortcut))
        and is_aligned(weight, bias, shortcut)
    )


def has_product(x: torch.Tensor) -> bool:
    """Whether cuBLASLt multiplies such tensors."""
    return x.is_cuda and x.dtype in TYPES and not torch.version.hip


def _one_by_one(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shortcut: torch.Tensor
) -> torch.Tensor:
    # In this order in memory, whatever that of the shortcut is, as the library writes it.
    return (shortcut + functional.linear(x, weight, bias)).contiguous()


# The compiler infers shapes and types from it.
fake_of(linear_add)(_one_by_one)


class _Branch(NamedTuple):
    """What is added to a shortcut: a linear layer, perhaps scaled and permuted."""

    linear: fx.Node
    layer: nn.Linear
    axes: tuple[int, ...] | None
    scales: list[torch.Tensor]
    chain: list[fx.Node]


def fuse_sums(traced: fx.GraphModule) -> int:
    """Fuse linear layers with the sums after them; returns how many."""
    parts, fused = dict(traced.named_modules()), 0
    for total in list(traced.graph.nodes):
        for own, shortcut in summands(total):
            branch = _branch(traced, own, parts)
            if branch is None or may_change_between(branch.linear, total, parts):
                continue
            layer = _scaled(branch)
            if layer is None:
                continue
            name = add_part(traced, parts, f"linear_add_{fused}", LinearAdd(layer, branch.axes))
            fused += 1
            with traced.graph.inserting_after(total):
                node = traced.graph.call_module(name, (branch.linear.args[0], shortcut))
            total.replace_all_uses_with(node)
            for old in (total, *branch.chain):
                _erase(traced.graph, old)
            break
    return fused


def _branch(traced: fx.GraphModule, own: fx.Node, parts: dict[str, nn.Module]) -> _Branch | None:
    """The linear layer that a node is, behind products with constants and a permutation."""
    node, chain, axes = own, list[fx.Node](), None
    late, early = list[torch.Tensor](), list[torch.Tensor]()  # behind the permutation, before it
    while len(node.users) == 1:
        chain.append(node)
        layer = parts.get(str(node.target)) if node.op == "call_module" else None
        if layer is not None:
            # The exact type: a subclass may do something else with its weight.
            plain = type(layer) is nn.Linear and layer.bias is not None and not has_hooks(layer)
            if not plain or len(node.args) != 1 or node.kwargs:
                return None
            assert isinstance(layer, nn.Linear)
            scales = [
                *(_of_channels(value, layer.out_features, axes) for value in late),
                *(_of_channels(value, layer.out_features, None) for value in early),
            ]
            known = [scale for scale in scales if scale is not None]
            return _Branch(node, layer, axes, known, chain) if len(known) == len(scales) else None
        permuted = _permutation(node)
        if permuted is not None and axes is None:
            node, axes = permuted
            continue
        product = _scaled_by_constant(traced, node)
        if product is None:
            return None
        node, value = product
        (early if axes is not None else late).append(value)
    return None


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node, and the constants that it alone reads."""
    inputs = node.all_input_nodes
    graph.erase_node(node)
    for own in inputs:
        if not own.users and (own.op == "get_attr" or own.target in _RESHAPED):
            _erase(graph, own)


def _permutation(node: fx.Node) -> tuple[fx.Node, tuple[int, ...]] | None:
    """What a node permutes, and all the axes."""
    if node.op not in ("call_function", "call_method") or node.target not in _PERMUTATIONS:
        return None
    of, *axes = node.args
    if len(axes) == 1 and isinstance(axes[0], list | tuple):
        axes = list(axes[0])
    if node.kwargs or not isinstance(of, fx.Node) or not all(type(own) is int for own in axes):
        return None
    own = tuple(int(axis) % len(axes) for axis in axes)  # type: ignore[arg-type]
    return of, own


def _scaled_by_constant(
    traced: fx.GraphModule, node: fx.Node
) -> tuple[fx.Node, torch.Tensor] | None:
    """What a node multiplies by a constant, and the constant."""
    if node.op not in ("call_function", "call_method") or node.target not in _PRODUCTS:
        return None
    if node.kwargs or len(node.args) != 2:
        return None
    one, other = node.args
    for of, factor in ((one, other), (other, one)):
        value = _constant(traced, factor)
        if value is not None and isinstance(of, fx.Node):
            return of, value
    return None


def _constant(traced: fx.GraphModule, node: object) -> torch.Tensor | None:
    """The tensor of the network that a node reads, perhaps in another shape."""
    if not isinstance(node, fx.Node):
        return None
    value = constant_of(traced, node)
    if value is not None:
        return value if value.dtype == torch.float32 else None
    if node.op != "call_method" or node.target not in _RESHAPED or node.kwargs:
        return None
    of, *shape = node.args
    value = _constant(traced, of)
    numbers = all(type(own) is int for own in shape)
    return getattr(value, str(node.target))(*shape) if value is not None and numbers else None


def _of_channels(
    value: torch.Tensor, channels: int, axes: tuple[int, ...] | None
) -> torch.Tensor | None:
    """A constant as one number for each of a linear layer's outputs, if it is that.

    `axes` are those of the permutation before the product; None: the channels are the last axis.
    """
    shape = list(value.shape)
    if axes is None:
        fits = shape in ([channels], [1], [])
    else:
        shape = [1] * (len(axes) - len(shape)) + shape
        place = axes.index(len(axes) - 1)
        wanted = [1] * len(axes)
        fits = shape == wanted or shape == [*wanted[:place], channels, *wanted[place + 1 :]]
    return value.flatten().expand(channels) if fits else None


@torch.no_grad()
def _scaled(branch: _Branch) -> nn.Linear | None:
    """The layer times the scales; None if float16 has too few bits for some of its rows then."""
    if not branch.scales:
        return branch.layer
    layer = copy.deepcopy(branch.layer)
    for scale in branch.scales:
        layer.weight.mul_(scale[:, None])
        layer.bias.mul_(scale)
    rounded = layer.weight.half().float() - layer.weight
    fits = rounded.norm(dim=1) <= ROUNDING_ALLOWED * layer.weight.norm(dim=1)
    return layer if bool(fits.all()) else None
