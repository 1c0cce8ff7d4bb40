"""Operations in place, as what they give: `x += y` as `x + y`.

The two are the same unless something else shares the memory of `x`, as a view of it does.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

aten = torch.ops.aten

_IN_PLACE = (
    *(aten.add_, aten.sub_, aten.mul_, aten.div_, aten.clamp_, aten.clamp_min_, aten.relu_),
    *(aten.hardtanh_, aten.leaky_relu_, aten.elu_, aten.silu_, aten.mish_, aten.sigmoid_),
    *(aten.tanh_, aten.hardswish_, aten.hardsigmoid_),
)
"""Operations that give in place what those of the same name without `_` give, of one float type."""


class Sharing:
    """Tensors of a run, by the memory that they share."""

    def __init__(self) -> None:
        self._of: dict[int, list[TensorWeakRef]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Every tensor has to be added that an operation makes of others that were."""
        known = self._of.setdefault(place_of(tensor), [])
        if not any(own() is tensor for own in known):
            known[:] = [own for own in known if own() is not None]
            known.append(TensorWeakRef(tensor))

    def without_writes(self, func: Any, tensors: Sequence[torch.Tensor]) -> Any | None:
        """The operation that returns what this one writes, to the first of these arguments.

        None if there is none, or if something else may show what is written.
        """
        if func.overloadpacket not in _IN_PLACE or not tensors:
            return None
        changed = tensors[0]
        alive = [
            own
            for own in (known() for known in self._of.get(place_of(changed), ()))
            if own is not None
        ]
        if place_of(changed) == 0 or not (len(alive) == 1 and alive[0] is changed):
            return None
        if not changed.is_floating_point() or any(own.dtype != changed.dtype for own in tensors):
            return None
        return _that_returns(func)


@functools.cache
def _that_returns(func: Any) -> Any | None:
    packet = getattr(aten, func.overloadpacket.__name__.removesuffix("_"))
    return getattr(packet, func._overloadname, None)


def place_of(tensor: torch.Tensor) -> int:
    """Where its memory is; 0 of tensors without memory of the usual kind."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
