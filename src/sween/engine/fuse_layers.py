"""Layers that one call of a library, or one kernel, computes together."""

import copy
import operator

import torch
from torch import fx, nn
from torch.nn import functional

from sween.engine.added_convolutions import AddedConvolutions
from sween.engine.batch_norm_relu import BatchNormRelu, fuse_batch_norms
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.depthwise_convolution import DepthwiseConvolution, fuse_depthwise
from sween.engine.fuse_attention import attention, fuse_attention
from sween.engine.fuse_convolutions import fuse_convolutions
from sween.engine.fuse_first_layers import FIRST_LAYERS, fuse_first_layers
from sween.engine.layer_norm import KernelLayerNorm, fuse_layer_norms
from sween.engine.linear_add import LinearAdd, fuse_sums
from sween.engine.linear_gelu import LinearGelu, fuse_gelus
from sween.engine.patch_convolution import PatchConvolution
from sween.engine.tracing import SUMS, trace

KERNELS = (
    *(*FIRST_LAYERS, AddedConvolutions, BatchNormRelu),
    *(DepthwiseConvolution, KernelLayerNorm),
)
"""Layers that a custom kernel computes after `let_run`, if it can."""

_CALLS = (
    *(FusedConvolution, LinearAdd, LinearGelu, *KERNELS),
    *(nn.Conv2d, nn.Linear, nn.AdaptiveAvgPool2d, nn.Flatten),
)
_FUNCTIONS = (
    *(torch.mean, "mean", functional.adaptive_avg_pool2d),
    *(functional.scaled_dot_product_attention, attention),
    *(operator.getitem, getattr, torch.flatten, "flatten", "reshape", torch.reshape, "size"),
    *("permute", torch.permute, "transpose", torch.transpose, "unbind", torch.unbind),
    *("chunk", torch.chunk, "expand"),
)
"""Of which torch's own kernels are as fast as compiled ones, or that move nothing."""

_PASSES_OVER_TENSORS = (*SUMS, torch.cat)
MOST_PASSES = 2
"""So many of these do not pay for the compiler's seconds: a transformer puts its class token before
the others, and adds their places, once."""

_OF_SIZES = (getattr, "size", operator.getitem, operator.floordiv, operator.mul)

_PASSES = (
    fuse_convolutions,
    fuse_first_layers,
    fuse_batch_norms,
    fuse_depthwise,
    fuse_layer_norms,
    fuse_gelus,
    fuse_sums,
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
    parts, passes = dict(module.named_modules()), 0
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = parts[str(node.target)]
            by_library = isinstance(part, KERNELS) and not part.by_kernel
            # torch adds the bias of a plain convolution in a pass of its own.
            plain = isinstance(part, nn.Conv2d) and not isinstance(part, PatchConvolution)
            if not isinstance(part, _CALLS) or by_library or (plain and part.bias is not None):
                return False
        elif node.op in ("call_function", "call_method"):
            passes += node.target in _PASSES_OVER_TENSORS
            known = node.target in (*_FUNCTIONS, *_PASSES_OVER_TENSORS)
            if not known and not _is_size(node):
                return False
    return passes <= MOST_PASSES


def _is_size(node: fx.Node) -> bool:
    """Whether a node is a number that is computed from the shape of a tensor."""
    if node.op not in ("call_function", "call_method") or node.target not in _OF_SIZES:
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    return node.target == "size" or all(_is_size(own) for own in node.all_input_nodes)
