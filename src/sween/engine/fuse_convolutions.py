"""Convolution, bias, addition of a shortcut and relu in one call.

A pass over the graph of a module in evaluation mode, after batch norm is folded. It needs no
long search: the heuristics of cuDNN and cuBLASLt propose the kernels.
"""

from torch import fx, nn

from sween.engine.added_convolutions import AddedConvolutions, suits
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.tracing import (
    add_part,
    count_uses,
    has_hooks,
    is_relu,
    may_change_between,
    summands,
)


def fuse_convolutions(traced: fx.GraphModule) -> int:
    """Fuse convolutions with the relus after them; returns how many."""
    parts, uses = dict(traced.named_modules()), count_uses(traced)
    fused = 0
    for relu in list(traced.graph.nodes):
        if not is_relu(relu, parts):
            continue
        found = _before(relu, parts)
        if found is None:
            continue
        conv, total, shortcut = found
        layer, inputs = parts[str(conv.target)], [conv.args[0]]
        assert isinstance(layer, nn.Conv2d)
        part: nn.Module = FusedConvolution(layer)
        if total is not None and shortcut is not None:
            inputs.append(shortcut)
            other = _only_added(shortcut, parts)
            if other is not None:
                if uses[str(conv.target)] == uses[str(shortcut.target)] == 1:
                    _move_bias(other, layer)
                moves = not may_change_between(shortcut, relu, parts, besides=total)
                if suits(layer, other) and moves:
                    part, inputs[1] = AddedConvolutions(layer, other), shortcut.args[0]
        name = add_part(traced, parts, f"fused_convolution_{fused}", part)
        fused += 1
        # Without a shortcut in the convolution's own place: nothing can have changed its input.
        with traced.graph.inserting_after(conv if total is None else relu):
            node = traced.graph.call_module(name, tuple(inputs))
        relu.replace_all_uses_with(node)
        for old in (relu, total, conv, shortcut):
            if old is not None and not old.users:
                traced.graph.erase_node(old)
    return fused


def _only_added(shortcut: fx.Node, parts: dict[str, nn.Module]) -> nn.Conv2d | None:
    """The convolution that a shortcut is, if its output is used nowhere else."""
    if len(shortcut.users) > 1 or not _is_convolution(shortcut, parts):
        return None
    layer = parts[str(shortcut.target)]
    assert isinstance(layer, nn.Conv2d)
    return layer


def _move_bias(shortcut: nn.Conv2d, layer: nn.Conv2d) -> None:
    """Let the layer that a convolution's output is added to add its bias as well.

    torch adds the bias of a convolution that is not fused in a pass of its own over the output.
    """
    if shortcut.bias is None:
        return
    bias = shortcut.bias if layer.bias is None else layer.bias + shortcut.bias
    layer.bias, shortcut.bias = nn.Parameter(bias.detach().clone()), None


def _before(
    relu: fx.Node, parts: dict[str, nn.Module]
) -> tuple[fx.Node, fx.Node | None, fx.Node | None] | None:
    """The convolution that a relu can be fused with, the sum between them and the shortcut."""
    of = relu.args[0]
    assert isinstance(of, fx.Node)
    if len(of.users) > 1:
        return None
    if _is_convolution(of, parts):
        return of, None, None
    for conv, shortcut in summands(of):
        if len(conv.users) > 1 or not _is_convolution(conv, parts):
            continue
        # The convolution moves to the relu's place, and its input must be the same there.
        if not may_change_between(conv, relu, parts, besides=of):
            return conv, of, shortcut
    return None


def _is_convolution(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    """Whether a node is a convolution of images that cuDNN's call can express.

    Depthwise ones are left alone: torch has kernels of its own for them.
    """
    part = parts.get(str(node.target)) if node.op == "call_module" else None
    # The exact type: a subclass may do something else with its weight.
    return (
        type(part) is nn.Conv2d
        and part.padding_mode == "zeros"
        and not isinstance(part.padding, str)
        and not (part.groups > 1 and part.groups == part.in_channels)
        and len(node.args) == 1
        and not node.kwargs
        and not has_hooks(part)
    )
