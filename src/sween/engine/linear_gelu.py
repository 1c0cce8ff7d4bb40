"""gelu(linear(x)) as one operation: on a GPU, in 16 bits, one call of cuBLAS.

cuBLAS has gelu by its tanh formula, which is within 0.0005 of the exact one: as much as rounding
to float16 changes a number of 1. Otherwise the operations run one after the other, as written.
"""

import torch
from torch import fx, nn
from torch.nn import functional

from sween.engine.operation import fake_of, operation
from sween.engine.tracing import add_part, has_hooks


class LinearGelu(nn.Module):
    """gelu(linear(x)).

    Args:
        linear: whose weights are used; not changed.
        approximate: formula of gelu, "none" or "tanh".
    """

    def __init__(self, linear: nn.Linear, approximate: str) -> None:
        super().__init__()
        self.linear, self.approximate = linear, approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        x = x.to(weight.dtype)  # as autocast does for a linear layer
        fused: torch.Tensor = linear_gelu(x, weight, bias, self.approximate)
        return fused


@operation
def linear_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str
) -> torch.Tensor:
    """See `LinearGelu`."""
    if not has_fused_gelu(x):
        return _one_by_one(x, weight, bias, approximate)
    rows = x.reshape(-1, x.shape[-1])
    out = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return out.view(*x.shape[:-1], len(weight))


def has_fused_gelu(x: torch.Tensor) -> bool:
    """Whether cuBLAS computes gelu with the product."""
    return x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and not torch.version.hip


def _one_by_one(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str
) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias), approximate=approximate)


@fake_of(linear_gelu)
def _like(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def fuse_gelus(traced: fx.GraphModule) -> int:
    """Fuse linear layers with the gelus after them; returns how many."""
    parts, fused = dict(traced.named_modules()), 0
    for gelu in list(traced.graph.nodes):
        approximate = _approximation(gelu, parts)
        linear = gelu.args[0] if gelu.args else None
        if approximate is None or not isinstance(linear, fx.Node):
            continue
        layer = parts.get(str(linear.target)) if linear.op == "call_module" else None
        # The exact type: a subclass may do something else with its weight.
        if type(layer) is not nn.Linear or layer.bias is None or has_hooks(layer):
            continue
        if len(linear.users) > 1 or len(linear.args) != 1 or linear.kwargs:
            continue
        name = add_part(traced, parts, f"linear_gelu_{fused}", LinearGelu(layer, approximate))
        fused += 1
        with traced.graph.inserting_after(linear):
            node = traced.graph.call_module(name, linear.args)
        gelu.replace_all_uses_with(node)
        traced.graph.erase_node(gelu)
        traced.graph.erase_node(linear)
    return fused


def _approximation(node: fx.Node, parts: dict[str, nn.Module]) -> str | None:
    """The formula of a gelu; None for other nodes."""
    if node.op == "call_module":
        part = parts[str(node.target)]
        return part.approximate if type(part) is nn.GELU and not has_hooks(part) else None
    if node.op != "call_function" or node.target is not functional.gelu or len(node.args) != 1:
        return None
    return str(node.kwargs.get("approximate", "none"))
