"""Attention that is written out, softmax(q k^T) v, as one call of torch's fused kernel.

The kernel does not write the matrix of scores to memory. Networks that call
`scaled_dot_product_attention` themselves have it already.
"""

import operator
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from sween.engine.tracing import has_hooks, may_change_between

_PRODUCTS = (torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm")
_SOFTMAXES = (torch.softmax, functional.softmax, "softmax")
_TIMES, _BY = (operator.mul, torch.mul, "mul"), (operator.truediv, torch.div, "div")
_LAST_TWO = ({-1, -2}, {2, 3}, {1, 2})
"""Axes of a transposition: by their numbers from the end, of four or of three. Of how many is known
only when the network runs, see `attention`."""


class Scores(NamedTuple):
    """Products of queries and keys, times a number.

    `product` is the node that multiplies them, before the number, and `axes` are those in which
    the keys are transposed.
    """

    product: fx.Node
    queries: fx.Node
    keys: fx.Node
    axes: tuple[int, int]
    scale: float


def attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    axes: tuple[int, int],
    scale: float,
) -> torch.Tensor:
    """softmax(scale q k^T) v, by the fused kernel if `axes` are the last two of the keys."""
    last_two = {keys.ndim - 2, keys.ndim - 1}
    if {axis % keys.ndim for axis in axes} == last_two:
        return functional.scaled_dot_product_attention(queries, keys, values, scale=scale)
    scores: torch.Tensor = queries @ keys.transpose(*axes) * scale
    return scores.softmax(dim=-1) @ values


def fuse_attention(traced: fx.GraphModule) -> int:
    """Fuse products, softmax and products of attention; returns how many."""
    parts, fused = dict(traced.named_modules()), 0
    for product in list(traced.graph.nodes):
        weights, values = _operands(product, _PRODUCTS)
        if weights is None or values is None or len(weights.users) > 1:
            continue
        scores = _scores(_softmax_of(weights, parts))
        if scores is None or may_change_between(scores.product, product, parts):
            continue
        with traced.graph.inserting_after(product):
            node = traced.graph.call_function(
                attention,
                (scores.queries, scores.keys, values, scores.axes, scores.scale),
            )
        product.replace_all_uses_with(node)
        _erase_chain(traced.graph, product, scores)
        fused += 1
    return fused


def _erase_chain(graph: fx.Graph, product: fx.Node, scores: Scores) -> None:
    """Erase what the fused call replaces, and nothing else that seems unused.

    A call that works in place has no users either, but must run.
    """
    transposed = scores.product.args[1]
    node: Any = product
    while node is not scores.product:
        before = next(own for own in node.args or node.kwargs.values() if isinstance(own, fx.Node))
        graph.erase_node(node)
        node = before
    graph.erase_node(node)
    if isinstance(transposed, fx.Node) and not transposed.users:
        graph.erase_node(transposed)


def _softmax_of(node: fx.Node, parts: dict[str, nn.Module]) -> fx.Node | None:
    """What the softmax over the last axis is of; None for other nodes."""
    if node.op == "call_module":
        part = parts[str(node.target)]
        last = type(part) is nn.Softmax and part.dim == -1 and not has_hooks(part)
        found = node.args[0] if last and len(node.args) == 1 and not node.kwargs else None
    else:
        given = {**dict(zip(("of", "dim"), node.args, strict=False)), **node.kwargs}
        of = given.pop("of", given.pop("input", None))
        given.pop("_stacklevel", None)  # of a warning
        # Of another type the result is rounded differently.
        plain = given.pop("dtype", None) is None and given == {"dim": -1} and len(node.args) <= 2
        last = _calls(node, _SOFTMAXES) and plain
        found = of if last else None
    return found if isinstance(found, fx.Node) and len(found.users) == 1 else None


def _scores(node: fx.Node | None) -> Scores | None:
    """The product of queries and keys that a node is, times a number if it is multiplied by one."""
    scale = 1.0
    if node is not None and _calls(node, (*_TIMES, *_BY)) and not node.kwargs:
        times = _calls(node, _TIMES)
        of, number = node.args
        if times and isinstance(of, int | float):
            of, number = number, of
        if not isinstance(number, int | float) or not isinstance(of, fx.Node) or not number:
            return None
        scale = float(number) if times else 1 / float(number)
        node = of if len(of.users) == 1 else None
    if node is None:
        return None
    queries, transposed = _operands(node, _PRODUCTS)
    keys, axes = (None, None) if transposed is None else _transposed(transposed)
    if queries is None or keys is None or axes is None:
        return None
    return Scores(node, queries, keys, axes, scale)


def _transposed(node: fx.Node) -> tuple[fx.Node | None, tuple[int, int] | None]:
    """What a node transposes, and in which axes, if these may be its last two."""
    of, *axes = node.args or (None,)
    if not isinstance(of, fx.Node):
        return None, None
    if _calls(node, (torch.transpose, "transpose", "swapaxes")) and not node.kwargs:
        numbers = [axis for axis in axes if isinstance(axis, int)]
        known = len(axes) == 2 and {*numbers} in _LAST_TWO
        return (of, (numbers[0], numbers[1])) if known else (None, None)
    return (of, (-2, -1)) if _calls(node, (getattr,)) and axes == ["mT"] else (None, None)


def _operands(node: fx.Node, targets: tuple[Any, ...]) -> tuple[fx.Node | None, fx.Node | None]:
    if not _calls(node, targets) or len(node.args) != 2 or node.kwargs:
        return None, None
    first, second = node.args
    known = isinstance(first, fx.Node) and isinstance(second, fx.Node)
    return (first, second) if known else (None, None)  # type: ignore[return-value]


def _calls(node: fx.Node, targets: tuple[Any, ...]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets
