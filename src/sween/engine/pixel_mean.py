"""Global average pooling as a mean: torch's kernels for means are faster than those for pools."""

import operator

import torch
from torch import fx, nn
from torch.nn import functional

from sween.engine.added_convolutions import AddedConvolutions
from sween.engine.batch_norm_relu import BatchNormRelu
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.normalized_convolution import NormalizedConvolution
from sween.engine.stem import Stem
from sween.engine.tracing import has_hooks


class PixelMean(nn.Module):
    """The mean over the last two of four dimensions.

    Args:
        keepdim: whether the result has them too, of size 1.
    """

    def __init__(self, *, keepdim: bool) -> None:
        super().__init__()
        self.keepdim = keepdim

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3), keepdim=self.keepdim)


def fuse_means(traced: fx.GraphModule) -> int:
    """Put `PixelMean` in the place of means over all pixels; returns how many."""
    parts, found = dict(traced.named_modules()), 0
    for node in list(traced.graph.nodes):
        keepdim = _keeps_dimensions(node, parts)
        if keepdim is None:
            continue
        name = f"_pixel_mean_{found}"
        while hasattr(traced, name):
            name += "_"
        traced.add_submodule(name, PixelMean(keepdim=keepdim))
        with traced.graph.inserting_after(node):
            mean = traced.graph.call_module(name, (node.args[0],))
        node.replace_all_uses_with(mean)
        traced.graph.erase_node(node)
        found += 1
    return found


def _keeps_dimensions(node: fx.Node, parts: dict[str, nn.Module]) -> bool | None:
    """Whether a mean over all pixels of a convolution's output keeps them; None: not such a mean.

    The output of a convolution has four dimensions, which a trace does not know of other tensors.
    """
    of = node.args[0] if node.args else None
    if not isinstance(of, fx.Node) or not _gives_images(of, parts):
        return None
    if node.op == "call_module":
        part = parts[str(node.target)]
        pools = type(part) is nn.AdaptiveAvgPool2d and not has_hooks(part)
        plain = len(node.args) == 1 and not node.kwargs
        return True if pools and plain and _is_one(getattr(part, "output_size", None)) else None
    arguments = (*node.args[1:], *node.kwargs.values())
    if node.op == "call_function" and node.target is functional.adaptive_avg_pool2d:
        return True if len(arguments) == 1 and _is_one(arguments[0]) else None
    if (node.op, node.target) not in (("call_method", "mean"), ("call_function", torch.mean)):
        return None
    options = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
    dim, keepdim = options.pop("dim", None), options.pop("keepdim", False)
    over = isinstance(dim, list | tuple) and {own for own in dim if isinstance(own, int)}
    if options or over not in ({2, 3}, {-1, -2}, {2, -1}, {3, -2}) or len(dim) != 2:  # type: ignore[arg-type]
        return None
    return keepdim if isinstance(keepdim, bool) else None


def _gives_images(node: fx.Node, parts: dict[str, nn.Module]) -> bool:
    if (node.op, node.target) == ("call_function", operator.getitem):
        of = node.args[0]
        is_norm = isinstance(of, fx.Node) and of.op == "call_module"
        return is_norm and isinstance(parts.get(str(of.target)), BatchNormRelu)  # type: ignore[union-attr]
    layers = (nn.Conv2d, FusedConvolution, NormalizedConvolution, AddedConvolutions, Stem)
    return node.op == "call_module" and isinstance(parts.get(str(node.target)), layers)


def _is_one(size: object) -> bool:
    return size in (1, (1, 1), [1, 1])
