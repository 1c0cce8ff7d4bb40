"""Layers that one call of a library computes together."""

import copy

from torch import nn

from sween.engine.fuse_attention import fuse_attention
from sween.engine.fuse_convolutions import fuse_convolutions
from sween.engine.fuse_stem import fuse_stem
from sween.engine.linear_gelu import fuse_gelus
from sween.engine.tracing import trace


def fuse_layers(module: nn.Module) -> nn.Module:
    """A copy in which such layers are fused; computes the same.

    A module that torch.fx cannot trace, and one in which nothing can be fused, is returned itself.

    Args:
        module: in evaluation mode, batch norm folded.
    """
    passes = (fuse_convolutions, fuse_stem, fuse_gelus, fuse_attention)
    try:
        traced = trace(copy.deepcopy(module))
        if not sum(fuse(traced) for fuse in passes):
            return module
        traced.delete_all_unused_submodules()
        traced.recompile()
    except Exception:  # tracing runs the module's own code, which may raise anything
        return module
    return traced
