"""Forms of a module in an arithmetic: layer by layer, or with fused layers.

Where one changes the outputs too much, a simpler one takes its place.
"""

import functools
from collections.abc import Callable

import torch
from torch import nn

from sween.engine.arithmetic import InArithmetic
from sween.engine.differences import CHANGE_ALLOWED, refuse_change, relative_change
from sween.engine.fuse_layers import KERNELS, fuse_layers
from sween.engine.model_errors import refuse_broken_device
from sween.engine.patch_convolution import use_patches
from sween.engine.same_outputs import computes_the_same
from sween.errors import ContractError, describe_error, is_out_of_memory


def plain_form(
    module: nn.Module,
    folded: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    wanted: torch.Tensor,
    any_layout: Callable[[], bool],
) -> tuple[InArithmetic, nn.Module]:
    """The folded module in this arithmetic, or the module itself where folding changes too much.

    Also which of the two it is. A module that cannot run in this arithmetic is refused.
    `any_layout` is whether the module itself may be given channels-last images.
    """
    make = functools.partial(_in_arithmetic, dtype=dtype, images=images, wanted=wanted)
    ready, change = make(folded, channels_last=folded is not module or any_layout())
    if not change <= CHANGE_ALLOWED[dtype]:
        folded = module
        ready, change = make(folded, channels_last=any_layout())
        if dtype != torch.float32:
            refuse_change(change, dtype)
    return ready, folded


def _in_arithmetic(
    module: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    wanted: torch.Tensor,
    *,
    channels_last: bool,
) -> tuple[InArithmetic, float]:
    """The module in this arithmetic, and how far that changes its outputs."""
    try:
        ready = InArithmetic(module, images.device, dtype, channels_last=channels_last)
        change = relative_change(ready.settle(images), wanted)
        if not change <= CHANGE_ALLOWED[dtype] and ready.channels_last:
            # Code that reads memory in its own order, as `as_strided` does, raises no error.
            ready.channels_last = False
            change = relative_change(ready(images), wanted)
        return ready, change
    except Exception as error:  # a user's module may raise anything
        if dtype == torch.float32 or is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        raise ContractError(
            "model",
            expected=f"a forward pass in {str(dtype).removeprefix('torch.')}",
            got=describe_error(error),
            fix="use float32 precision",
        ) from error


def fused_form(
    module: nn.Module,
    folded: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    compared: tuple[torch.Tensor, torch.Tensor],
    any_layout: Callable[[], bool],
    *,
    read: bool,
    autocast: bool = False,
) -> InArithmetic | None:
    """The module with fused layers in its arithmetic.

    Args:
        module: the original.
        folded: what is fused.
        dtype: of the arithmetic.
        images: a batch of the shape that votes.
        compared: a few images and the module's outputs for them.
        any_layout: whether the module itself may be given channels-last images.
        read: whether torch.fx reads the module rightly; otherwise nothing is fused.
        autocast: where some layers do not run in this arithmetic, leave that to autocast; otherwise
            None is returned.
    """
    fused = fuse_layers(folded) if read else module
    if fused is not module and not computes_the_same(fused, module, images):
        fused = folded
    for part in fused.modules():
        if isinstance(part, KERNELS):
            part.let_run(images, dtype)
    channels_last = fused is not module or any_layout()
    ready = _without_autocast(fused, dtype, *compared, channels_last=channels_last)
    if ready is None:
        if not autocast:
            return None
        ready = InArithmetic(fused, images.device, dtype, channels_last=channels_last)
        ready.settle(compared[0])
    if not ready.shared and ready.channels_last:
        use_patches(ready)
        for part in ready.modules():
            if isinstance(part, nn.Conv2d):
                weight = part.weight.contiguous(memory_format=torch.channels_last)
                part.weight.data = weight
    return ready


def _without_autocast(
    module: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    wanted: torch.Tensor,
    *,
    channels_last: bool = True,
) -> "InArithmetic | None":
    """All layers in this arithmetic, so that none of them moves float32; None if that fails."""
    try:
        ready = InArithmetic(module, images.device, dtype, whole=True, channels_last=channels_last)
        change = relative_change(ready.settle(images), wanted)
        return ready if change <= CHANGE_ALLOWED[dtype] else None
    except Exception as error:  # its code may make tensors of another type
        if is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        return None
