"""What the outputs of a module depend on."""

import operator

import torch
from torch import nn

from sween.models.evaluation_mode import is_training, parts_of


def state_of(module: nn.Module) -> tuple[list[object], list[torch.Tensor]]:
    """What the outputs depend on: submodules with their modes and hooks, and all of their tensors.

    Submodules are compared too, since one without tensors can be replaced by another.
    """
    parts, tensors = list[object](), list[torch.Tensor]()
    for part in parts_of(module):
        parts += (part, is_training(part), vars(part).get("forward"))  # where it was replaced
        parts += part._forward_pre_hooks.values()
        parts += part._forward_hooks.values()
        tensors += [own for own in part._parameters.values() if own is not None]
        tensors += [own for own in part._buffers.values() if own is not None]
    return parts, tensors


def same_parts(now: list[object], then: list[object]) -> bool:
    return len(now) == len(then) and all(map(operator.is_, now, then))


def same_tensors(now: list[torch.Tensor], then: list[torch.Tensor]) -> bool:
    # `torch.equal` raises for tensors on two devices, and ignores the dtype.
    return len(now) == len(then) and all(
        own.dtype == other.dtype
        and own.device == other.device
        # Tensors on no device have no values.
        and (own.is_meta or torch.equal(own, other) or _same_but_for_nan(own, other))
        for own, other in zip(map(_dense, now), map(_dense, then), strict=True)
    )


def _dense(own: torch.Tensor) -> torch.Tensor:
    """With all of its zeros: sparse tensors cannot be compared."""
    return own if own.layout == torch.strided else own.to_dense()


def _same_but_for_nan(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal where NaN counts as equal to itself."""
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
