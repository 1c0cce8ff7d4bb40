"""Operations in place, as what they give: `x += y` as `x + y`.

The two are the same unless something else shows the memory of `x`, as a view of it does.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

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
        self._states = WeakTensorKeyDictionary()

    def add(self, tensor: torch.Tensor, *, written: bool = False) -> None:
        """Every tensor has to be added that an operation makes of others that were, or changes."""
        known = self._of.setdefault(place_of(tensor), [])
        if not any(own() is tensor for own in known):
            known[:] = [own for own in known if own() is not None]
            known.append(TensorWeakRef(tensor))
        # torch counts a write after those who watch operations have seen it, and only then lets a
        # view count the writes to what it is a view of.
        others = {_state(own) for each in known if (own := each()) is not None}
        place, writes = _state(tensor)
        self._states[tensor] = others | {(place, writes), (place, writes + written)}

    def shows(self, tensor: torch.Tensor) -> bool:
        """Whether its memory is that of a tensor that was added."""
        known = self._of.get(place_of(tensor), ())
        return place_of(tensor) != 0 and any(own() is not None for own in known)

    def was_changed(self, tensor: torch.Tensor) -> bool:
        """Whether it is not what was added, by an operation that was not seen.

        Such as one of another thread, or of a `Parameter` that was made of the tensor.
        """
        return tensor in self._states and _state(tensor) not in self._states[tensor]

    def shown_elsewhere(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Other tensors that were added and show some of its memory."""
        known = (own() for own in self._of.get(place_of(tensor), ()))
        return [
            own for own in known if own is not None and own is not tensor and _share(own, tensor)
        ]

    def without_writes(self, func: Any, tensors: Sequence[torch.Tensor]) -> Any | None:
        """The operation that returns what this one writes to the first of its arguments.

        None if there is none, or if something else may show what is written.
        """
        if func.overloadpacket not in _IN_PLACE or not tensors:
            return None
        changed = tensors[0]
        known = (own() for own in self._of.get(place_of(changed), ()))
        alive = [own for own in known if own is not None]
        if place_of(changed) == 0 or not (len(alive) == 1 and alive[0] is changed):
            return None
        if changed.is_inference() or not changed.is_floating_point():
            return None  # changes of inference tensors are not counted
        if any(own.dtype != changed.dtype for own in tensors):
            return None
        return _that_returns(func)


def overlaps(written: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operation reads memory that it writes, by another tensor than it writes to.

    What torch then gives depends on the order in which it goes through the memory.
    """
    return any(
        own is not other and _share(own, other) and not _are_the_same(own, other)
        for own in written
        for other in tensors
    )


def _are_the_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they show the same memory in the same order."""
    kinds = [
        (own.dtype, own.shape, own.stride(), own.storage_offset(), place_of(own))
        for own in (one, other)
    ]
    return kinds[0] == kinds[1]


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether some byte is of both."""
    if place_of(one) != place_of(other) or place_of(one) == 0:
        return False
    return bool((_bytes(one) & _bytes(other)).any())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Which bytes of its memory a tensor shows."""
    size = tensor.element_size()
    shown = torch.zeros(
        tensor.untyped_storage().nbytes() // size, dtype=torch.bool, device=tensor.device
    )
    shown.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).fill_(True)
    return shown.repeat_interleave(size)


@functools.cache
def _that_returns(func: Any) -> Any | None:
    packet = getattr(aten, func.overloadpacket.__name__.removesuffix("_"))
    return getattr(packet, func._overloadname, None)


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Which memory it has, and how many operations have written to it."""
    return place_of(tensor), 0 if tensor.is_inference() else tensor._version


def place_of(tensor: torch.Tensor) -> int:
    """Where its memory is; 0 of tensors without memory of the usual kind."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
