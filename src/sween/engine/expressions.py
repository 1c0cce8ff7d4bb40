"""What a module computes, written as expressions of its images, down to torch's own operations.

Two runs whose outputs are the same expressions compute the same function of the images, whatever
their values, unless the module's code reads these.

An operation in place is written as what it gives: `x += y` as `x + y`. Where something else shows
the memory of `x`, or a tensor was changed by something that is not seen, the run counts as
`entangled`, and its expressions say nothing of that.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils.weak import WeakTensorKeyDictionary

from sween.engine.dispatch_mode import WatchingMode
from sween.engine.in_place import Sharing, overlaps, place_of

aten = torch.ops.aten

_RESHAPED = (aten.view, aten._unsafe_view, aten._reshape_alias, aten.reshape, aten.view_copy)
_STRIDED = (aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter)
_COPIED = (aten.clone, aten.alias, aten.detach, aten.contiguous, aten._to_copy, aten.as_strided)
"""Copies, or other names, of their input, if type, shape and values are the same."""

_ABOUT_SHAPES = (aten._fused_sdp_choice, aten.is_same_size)
"""Operations that return numbers which do not depend on the values of a tensor."""


_DENIED = (aten.unsafe_chunk, aten.unsafe_split, aten.unsafe_split_with_sizes)
"""Operations whose results are views, which `torch.func.functionalize` denies."""

_UNINITIALISED = (aten.empty, aten.empty_strided, aten.new_empty, aten.new_empty_strided)
"""Operations that return whatever is in memory."""

_READ_VALUES = (
    *(aten._local_scalar_dense, aten.item, aten.equal, aten.is_nonzero, aten.allclose),
    *(aten._linalg_check_errors, aten._assert_async, aten._pack_padded_sequence),
)
"""Operations that give Python values of a tensor. Others may return numbers of their shapes, as
attention does on a GPU."""


class Differs(Exception):
    """The outputs cannot be written as one expression for all images."""


class Expressions:
    """Numbers for expressions: two have the same number if they are the same."""

    def __init__(self, pristine: nn.Module) -> None:
        """Of copies of `pristine`, which nothing may run or change."""
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[Hashable, list[tuple[torch.Tensor, int]]] = {}
        self.memory = list(memory_of(pristine).values())

    def of(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def constant(self, tensor: torch.Tensor) -> int:
        """Of the values of a tensor."""
        kind = (tensor.dtype, tensor.shape, tensor.device)
        alike = self._constants.setdefault(kind, [])
        for constant, number in alike:
            if _equal(constant, tensor):
                return number
        number = self.of(("constant", kind, len(alike)))
        alike.append((tensor.detach().clone(), number))  # it may be written to later
        return number


class Recorder(WatchingMode):
    """Keeps what tensors that are made of the images stand for, in one run of a module.

    Args:
        module: that is run.
        images: it is run on.
        expressions: shared with the runs that this one is compared with.
        original: whose parameters and buffers count as those of the same places in the module, if
            it is a copy: its code may still reach them.
        by_values: know parameters and buffers by their values alone, where a copy has them in
            other places, such as those that share memory.
        strict: refuse code that reads values, or draws random numbers, by raising `Differs`.
        by_use: compare parameters and buffers with what they were at each use; else together, at
            the start and the end, which takes far less time.

    Attributes:
        entangled: whether what was changed in place may show elsewhere.
        unclear: whether something was changed in a way of which `torch.func.functionalize` makes
            something else.
        reads: whether an operation gave Python a number or a shape by their values.
    """

    def __init__(
        self,
        module: nn.Module,
        images: torch.Tensor,
        expressions: Expressions,
        *,
        original: nn.Module | None = None,
        by_values: bool = False,
        strict: bool = True,
        by_use: bool = False,
    ) -> None:
        super().__init__()
        self.entangled = self.unclear = self.reads = self._denied = False
        self._by_use, self._saw_all = by_use, True
        self._expressions, self._strict = expressions, strict
        self._own = {
            place: (position, memory)
            for own in (() if by_values else (module, original or module))
            for position, (place, memory) in enumerate(memory_of(own).items())
        }
        memory = [] if by_values else list(memory_of(module).items())
        self._unchanged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        if _all_equal([own for _, own in memory], expressions.memory):
            self._unchanged = {
                place: (own, expressions.memory[position])
                for position, (place, own) in enumerate(memory)
            }
        self._made = WeakTensorKeyDictionary()
        self._constants = WeakTensorKeyDictionary()
        self._stale = WeakTensorKeyDictionary()
        self._written_to: dict[int, torch.UntypedStorage] = {}
        self._sharing = Sharing()
        self._note(images, expressions.of("images"))

    def number(self, tensor: torch.Tensor) -> int:
        """What a tensor stands for: an expression of the images, or its values.

        A parameter or buffer, or a part of it, is known by its place as long as it is unchanged.
        """
        with torch._C.DisableTorchFunction():  # what is done here is not what the module does
            self.entangled |= self._sharing.was_changed(tensor)
            self.unclear |= tensor in self._stale
            return self._number_of(tensor)

    def _number_of(self, tensor: torch.Tensor) -> int:
        made = self._made.get(tensor)  # type: ignore[no-untyped-call]
        if made is not None:
            return int(made)
        if (known := self._own.get(place_of(tensor))) is not None:
            position, memory = known
            unchanged = place_of(tensor) in self._unchanged
            if self._by_use or not unchanged:
                equal = _same_bytes(memory, self._expressions.memory[position])
                self._saw_all &= equal or not unchanged
                unchanged = equal
            if unchanged:
                part = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
                return self._expressions.of(("own", position, part))
        return self._expressions.constant(tensor)

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known not to be made of the images."""
        known = tensor in self._constants or place_of(tensor) in self._own
        return known and not self.is_made(tensor)

    def is_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to be made of the images."""
        if tensor in self._made or place_of(tensor) in self._written_to:
            return True
        return self._sharing.shows(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Of TorchScript, these calls come while modes for functions are on.
        with torch._C.DisableTorchFunction():
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, shape = _pytree.tree_flatten((args, kwargs))
        tensors = [own for own in leaves if isinstance(own, torch.Tensor)]
        if not any(map(self.is_made, tensors)):
            self._may_change(tensors if func._schema.is_mutable else ())
            found = func(*args, **kwargs)
            if func.overloadpacket in _UNINITIALISED:
                found.zero_()  # which nobody reads, but constants are known by their values
            for own in _pytree.tree_leaves(found):
                if isinstance(own, torch.Tensor):
                    self._constants[own] = True
            return found
        packet = func.overloadpacket
        self.entangled |= any(map(self._sharing.was_changed, tensors))
        self._denied |= packet in _DENIED
        self.unclear |= any(own in self._stale for own in tensors)
        kept = self._sharing.without_writes(func, tensors)
        key: Hashable = (kept or func, str(shape), *map(self._written, leaves))
        if packet in _STRIDED:
            key = (key, args[0].stride(), args[0].storage_offset())
        before = args[0].clone() if packet is aten.as_strided_ else None
        found = func(*args, **kwargs)
        if before is not None and before.shape == found.shape and torch.equal(before, found):
            # By the pooling of channels-last images: another layout, no other values.
            self._sharing.add(args[0], written=True)
            return found
        if self._strict:
            _refuse_values(func, args, found)
        self.reads |= packet in _READ_VALUES or _has_shape_by_values(func, args)
        written = _written_by(func, args, kwargs)
        self._may_change(written)
        if written and kept is None:
            self.entangled = True
            if self._denied:  # of what shows the same, functionalize would keep the old values
                for own in written:
                    self._stale.update(dict.fromkeys(self._sharing.shown_elsewhere(own), True))
            self.unclear |= overlaps(written, tensors)
        for own in written:
            if place := place_of(own):
                self._written_to[place] = own.untyped_storage()
        results = written if kept else [*_pytree.tree_leaves(found), *written]
        for position, own in enumerate(results):
            if isinstance(own, torch.Tensor):
                number = self._number(func, args, own, (key, position))
                self._note(own, number, written=bool(written))
        return found

    def _may_change(self, tensors: Iterable[torch.Tensor]) -> None:
        for own in tensors:
            self._unchanged.pop(place_of(own), None)

    def saw_all_changes(self) -> bool:
        """Whether parameters and buffers are what they were, but where operations changed them."""
        if not self._unchanged:
            return self._saw_all
        return self._saw_all and _all_equal(*zip(*self._unchanged.values(), strict=True))

    def _note(self, tensor: torch.Tensor, number: int, *, written: bool = False) -> None:
        self._sharing.add(tensor, written=written)
        self._made[tensor] = number

    def _number(self, func: Any, args: tuple[Any, ...], made: torch.Tensor, key: Hashable) -> int:
        """Of a result, whose layout does not matter."""
        packet, first = func.overloadpacket, args[0] if args else None
        if not isinstance(first, torch.Tensor) or first.dtype != made.dtype:
            return self._expressions.of(key)
        if packet in _RESHAPED and _same_values(first.reshape(made.shape), made):
            return self._expressions.of(("reshape", self.number(first), tuple(made.shape)))
        if packet in _COPIED and first.shape == made.shape and _same_values(first, made):
            return self.number(first)
        return self._expressions.of(key)

    def _written(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return torch.Tensor, self.number(value)
        return type(value), repr(value) if isinstance(value, float) else value  # NaN, and -0


def _written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operation changes in place."""
    names = [own.name for own in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    changed = [
        given.get(own.name)
        for own in func._schema.arguments
        if own.alias_info is not None and own.alias_info.is_write
    ]
    return [own for own in _pytree.tree_leaves(changed) if isinstance(own, torch.Tensor)]


def _refuse_values(func: Any, args: tuple[Any, ...], found: Any) -> None:
    """Refuse operations whose results, or their shapes, are known to Python, or random."""
    random = torch.Tag.nondeterministic_seeded in func.tags
    attention = "scaled_dot_product" in func.name()  # random with dropout alone
    plain = any(type(own) in (bool, int, float) for own in _pytree.tree_leaves(found))
    if (
        (random and not attention)
        or (plain and func.overloadpacket not in _ABOUT_SHAPES)
        or _has_shape_by_values(func, args)
    ):
        raise Differs(func.name())


def _has_shape_by_values(func: Any, args: tuple[Any, ...]) -> bool:
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    masks = (torch.bool, torch.uint8)
    return func.overloadpacket is not aten.index or any(
        isinstance(own, torch.Tensor) and own.dtype in masks
        for own in _pytree.tree_leaves(args[1:])
    )


def memory_of(module: nn.Module) -> dict[int, torch.Tensor]:
    """The memory of its parameters and buffers, as bytes, by its place."""
    found = dict[int, torch.Tensor]()
    for own in (*module.parameters(), *module.buffers()):
        if (place := place_of(own)) and place not in found:
            storage = own.untyped_storage()
            found[place] = torch.empty(0, dtype=torch.uint8, device=own.device).set_(storage)
    return found


def _all_equal(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether bytes are the same; off the CPU, where each answer is waited for, many at a time."""
    if [(own.device, own.shape) for own in ones] != [(own.device, own.shape) for own in others]:
        return False
    batches: dict[tuple[torch.device, int], list[int]] = {}
    before = 0
    for position, own in enumerate(ones):
        place = position if own.device.type == "cpu" else before // _BYTES_AT_ONCE
        batches.setdefault((own.device, place), []).append(position)
        before += len(own)
    return all(
        _same_bytes(*(_together([each[own] for own in batch]) for each in (ones, others)))
        for batch in batches.values()
    )


_BYTES_AT_ONCE = 2**26
"""Of copies that are made for a comparison."""


def _together(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of bytes are equal, compared eight at a time where that is possible."""
    both = (one, other)
    if all(len(own) % 8 == own.storage_offset() % 8 == own.data_ptr() % 8 == 0 for own in both):
        one, other = (own.view(torch.int64) for own in both)
    return torch.equal(one, other)


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """With NaN, as roots of dark pixels are, equal to itself."""
    return torch.equal(one, other) or (one.is_floating_point() and _equal(one, other))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit."""
    return torch.equal(
        *(own.detach().contiguous().flatten().view(torch.uint8) for own in (one, other))
    )
