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
"""Axes of a transposition: by their numbers from the end, of four or of three."""


class Scores(NamedTuple):
    """Products of queries and keys, times a number.

    `product` is the node that multiplies them, before the number.
    """

    product: fx.Node
    queries: fx.Node
    keys: fx.Node
    scale: float


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
                functional.scaled_dot_product_attention,
                (scores.queries, scores.keys, values),
                {"scale": scores.scale},
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
    keys = None if transposed is None else _transposed(transposed)
    return None if queries is None or keys is None else Scores(node, queries, keys, scale)


def _transposed(node: fx.Node) -> fx.Node | None:
    """What a node transposes in its last two axes."""
    of, *axes = node.args or (None,)
    if _calls(node, (torch.transpose, "transpose", "swapaxes")) and not node.kwargs:
        swapped = {*axes} in _LAST_TWO
    else:
        swapped = _calls(node, (getattr,)) and axes == ["mT"]
    return of if swapped and isinstance(of, fx.Node) else None


def _operands(node: fx.Node, targets: tuple[Any, ...]) -> tuple[fx.Node | None, fx.Node | None]:
    if not _calls(node, targets) or len(node.args) != 2 or node.kwargs:
        return None, None
    first, second = node.args
    known = isinstance(first, fx.Node) and isinstance(second, fx.Node)
    return (first, second) if known else (None, None)  # type: ignore[return-value]


def _calls(node: fx.Node, targets: tuple[Any, ...]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets
