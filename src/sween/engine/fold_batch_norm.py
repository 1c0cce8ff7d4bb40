"""Folds batch norm into the preceding layer, for modules in evaluation mode."""

import copy

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from sween.engine.tracing import count_uses, has_hooks, replace_part, trace

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Not linear layers: of tokens, a batch norm may be over another axis than theirs."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def fold_batch_norm(module: nn.Module) -> nn.Module:
    """A copy with batch norm folded away; the module itself if nothing can be folded.

    A module that torch.fx cannot trace, because its control flow depends on values, is returned
    unchanged.
    """
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        return module
    try:
        traced = trace(copy.deepcopy(module))
    except Exception:  # tracing runs the module's own code, which may raise anything
        return module
    parts, uses = dict(traced.named_modules()), count_uses(traced)
    for node in list(traced.graph.nodes):
        before = _layer_before(node, parts)
        if before is not None and uses[name := str(before.target)] == 1:
            parts[name] = _folded(parts[name], parts[node.target])
            replace_part(traced, name, parts[name])
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _layer_before(node: fx.Node, parts: dict[str, nn.Module]) -> fx.Node | None:
    """The layer that a batch norm can be folded into: directly before it, used by nothing else.

    Neither may have hooks, which would not run or see other numbers.
    """
    norm = parts.get(str(node.target)) if node.op == "call_module" else None
    # Exact types: a subclass may do something else with its weight.
    if norm is None or type(norm) not in _NORMS or has_hooks(norm):
        return None
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    before = node.args[0] if node.args else None
    if norm.running_mean is None or norm.training or not isinstance(before, fx.Node):
        return None
    layer = parts.get(str(before.target)) if before.op == "call_module" else None
    if layer is None or type(layer) not in _LAYERS or has_hooks(layer) or len(before.users) > 1:
        return None
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor):  # it was assigned while the module was traced
        return None
    # Other numbers of channels: it is a norm of tokens, not of features.
    return before if len(weight) == norm.num_features else None


def _folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return fuse_conv_bn_eval(layer.eval(), norm.eval())
