"""Layers that one call of a library, or one kernel, computes together."""

import copy
import operator

import torch
from torch import fx, nn
from torch.nn import functional

from sween.engine.added_convolutions import AddedConvolutions
from sween.engine.batch_norm_relu import BatchNormRelu, fuse_batch_norms
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.fuse_attention import fuse_attention
from sween.engine.fuse_convolutions import fuse_convolutions
from sween.engine.fuse_first_layers import fuse_first_layers
from sween.engine.linear_gelu import fuse_gelus
from sween.engine.normalized_convolution import NormalizedConvolution
from sween.engine.stem import Stem
from sween.engine.tracing import trace

KERNELS = (Stem, NormalizedConvolution, AddedConvolutions, BatchNormRelu)
"""Layers that a custom kernel computes after `let_run`, if it can."""

_CALLS = (FusedConvolution, *KERNELS, nn.Conv2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear)
_FUNCTIONS = (
    *(operator.getitem, torch.flatten, "flatten"),
    *(torch.mean, "mean", functional.adaptive_avg_pool2d),
)
"""Of which torch's own kernels are as fast as compiled ones, or that move nothing."""

_PASSES = (
    fuse_convolutions,
    fuse_first_layers,
    fuse_batch_norms,
    fuse_gelus,
    fuse_attention,
)


def fuse_layers(module: nn.Module) -> nn.Module:
    """A copy in which such layers are fused; computes the same.

    A module that torch.fx cannot trace, and one in which nothing can be fused, is returned itself.

    Args:
        module: in evaluation mode, batch norm folded.
    """
    try:
        traced = trace(copy.deepcopy(module))
        if not sum(fuse(traced) for fuse in _PASSES):
            return module
        traced.delete_all_unused_submodules()
        traced.recompile()
    except Exception:  # tracing runs the module's own code, which may raise anything
        return module
    return traced


def is_all_fused(module: nn.Module) -> bool:
    """Whether kernels and calls of libraries compute all of a network that `fuse_layers` returned.

    Then torch's compiler, which takes seconds to start, has nothing left to do.
    """
    if not isinstance(module, fx.GraphModule):
        return False
    parts = dict(module.named_modules())
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = parts[str(node.target)]
            by_library = isinstance(part, KERNELS) and not part.by_kernel
            # torch adds the bias of a plain convolution in a pass of its own.
            biased = isinstance(part, nn.Conv2d) and part.bias is not None
            if not isinstance(part, _CALLS) or by_library or biased:
                return False
        elif node.op in ("call_function", "call_method"):
            if node.target not in _FUNCTIONS:
                return False
        elif node.op == "get_attr":
            return False
    return True
