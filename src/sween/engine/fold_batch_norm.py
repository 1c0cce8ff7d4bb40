"""Folds batch norm into the preceding layer, for modules in evaluation mode."""

import copy

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from sween.engine.tracing import replace_part, trace


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
    parts = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if _foldable(node, parts):
            before = node.args[0]
            parts[before.target] = _folded(parts[before.target], parts[node.target])
            replace_part(traced, before.target, parts[before.target])
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _foldable(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    """Whether a node is a batch norm directly after a layer whose output nothing else uses."""
    norm = parts.get(str(node.target)) if node.op == "call_module" else None
    if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or norm.running_mean is None:
        return False
    before = node.args[0] if node.args else None
    if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
        return False
    layer = parts[str(before.target)]
    calls = [other for other in node.graph.nodes if other.target == before.target]
    # Exact types: a subclass may do something else with its weight.
    return len(calls) == 1 and type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def _folded(layer: nn.Module, norm: nn.Module) -> nn.Module:
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    if isinstance(layer, nn.Linear):
        return fuse_linear_bn_eval(layer.eval(), norm.eval())
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return fuse_conv_bn_eval(layer.eval(), norm.eval())
