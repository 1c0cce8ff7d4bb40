"""Whether a module may be rewritten: torch.fx reads its code as it runs, in any layout of images.

torch.fx runs a module's Python code on a stand-in for the images, and keeps what is done to it.
Code that asks what it was given (`isinstance(x, torch.Tensor)`, `hasattr`, a context such as
autocast) may get another answer than a tensor gives, and then the graph is another function, which
can agree with the module on some images and not on others. Likewise `contiguous` and `reshape`
return their input or a copy of it, depending on the layout, which matters to code that then writes
in place. So both are run in both layouts, on images of other values, and the outputs are written as
expressions of the images, down to torch's own operations. If all are the same, so is the function,
for any images: code that reads the values of pixels (`value_reads.py`), which may take another way
for others, is refused, and so are operations that give shapes which depend on values.

Operations in place are written as what they give (`torch.func.functionalize`): torch.fx reads
`x -= y` as `x = x - y`, which is the same unless something else still reads `x`. Each run is of a
copy of its own, since code may change the module when it runs, or when it is traced.

All this is about code, not about a device, and is done on the CPU if the module runs there: a GPU's
libraries have several operations for one layer. It is done with two images: code that goes another
way for more of them would not be noticed.
"""

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from sween.engine.model_errors import refuse_broken_device
from sween.engine.tracing import trace
from sween.engine.value_reads import ReadsOfValues

ROWS = 2
"""Images that are evaluated."""

aten = torch.ops.aten

_RESHAPED = (aten.view, aten._unsafe_view, aten._reshape_alias, aten.reshape, aten.view_copy)
_STRIDED = (aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter)
_COPIED = (aten.clone, aten.alias, aten.detach, aten.contiguous, aten._to_copy, aten.as_strided)
"""Copies, or other names, of their input, if type, shape and values are the same."""

_ABOUT_SHAPES = (aten._fused_sdp_choice, aten.is_same_size)
"""Operations that return numbers which do not depend on the values of a tensor."""


class _Differs(Exception):
    """The outputs cannot be written as one expression for all images."""


class _Expressions:
    """Numbers for expressions: two have the same number if they are the same."""

    def __init__(self, pristine: nn.Module) -> None:
        """Of copies of `pristine`, which nothing may run or change."""
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[Hashable, list[tuple[torch.Tensor, int]]] = {}
        self.memory = list(_memory_of(pristine).values())

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


class _Recorder(TorchDispatchMode):
    """Keeps what tensors that are made of the images stand for, in one run of a module."""

    def __init__(self, module: nn.Module, images: torch.Tensor, expressions: _Expressions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes = False
        """Whether a tensor that is made of the images was changed in place."""
        self._expressions = expressions
        self._own = {
            place: (position, memory)
            for position, (place, memory) in enumerate(_memory_of(module).items())
        }
        self._made = WeakTensorKeyDictionary()
        self._constants = WeakTensorKeyDictionary()
        self._written_to: dict[int, torch.UntypedStorage] = {}
        self._made[images] = expressions.of("images")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler, which takes seconds, to keep it out of this class."""
        return False

    def number(self, tensor: torch.Tensor) -> int:
        """What a tensor stands for: an expression of the images, or its values.

        A parameter or buffer, or a part of it, is known by its place as long as it is unchanged.
        """
        made = self._made.get(tensor)  # type: ignore[no-untyped-call]
        if made is not None:
            return int(made)
        if (known := self._own.get(_place(tensor))) is not None:
            position, memory = known
            if torch.equal(memory, self._expressions.memory[position]):
                part = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())
                return self._expressions.of(("own", position, part))
        return self._expressions.constant(tensor)

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known not to be made of the images."""
        place = _place(tensor)
        known = tensor in self._constants or place in self._own
        return known and tensor not in self._made and place not in self._written_to

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves, shape = _pytree.tree_flatten((args, kwargs))
        tensors = [own for own in leaves if isinstance(own, torch.Tensor)]
        if not any(own in self._made or _place(own) in self._written_to for own in tensors):
            found = func(*args, **kwargs)
            for own in _pytree.tree_leaves(found):
                if isinstance(own, torch.Tensor):
                    self._constants[own] = True
            return found
        packet = func.overloadpacket
        key: Hashable = (func, str(shape), *map(self._written, leaves))
        if packet in _STRIDED:
            key = (key, args[0].stride(), args[0].storage_offset())
        before = args[0].clone() if packet is aten.as_strided_ else None
        found = func(*args, **kwargs)
        if before is not None and before.shape == found.shape and torch.equal(before, found):
            return found  # by the pooling of channels-last images: another layout, no other values
        _refuse_values(func, args, found)
        written = _written_by(func, args, kwargs)
        self.writes |= bool(written)
        for own in written:
            if place := _place(own):
                self._written_to[place] = own.untyped_storage()
        for position, own in enumerate([*_pytree.tree_leaves(found), *written]):
            if isinstance(own, torch.Tensor):
                self._made[own] = self._number(func, args, own, (key, position))
        return found

    def _number(self, func: Any, args: tuple[Any, ...], made: torch.Tensor, key: Hashable) -> int:
        """Of a result, whose layout does not matter."""
        packet, first = func.overloadpacket, args[0] if args else None
        if not isinstance(first, torch.Tensor) or first.dtype != made.dtype:
            return self._expressions.of(key)
        if packet in _RESHAPED and torch.equal(first.reshape(made.shape), made):
            return self._expressions.of(("reshape", self.number(first), tuple(made.shape)))
        if packet in _COPIED and first.shape == made.shape and torch.equal(first, made):
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
        raise _Differs(func.name())


def _has_shape_by_values(func: Any, args: tuple[Any, ...]) -> bool:
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    masks = (torch.bool, torch.uint8)
    return func.overloadpacket is not aten.index or any(
        isinstance(own, torch.Tensor) and own.dtype in masks
        for own in _pytree.tree_leaves(args[1:])
    )


def is_read_rightly(module: nn.Module, images: torch.Tensor) -> bool:
    """Whether the graph that `trace` makes of a module does what the module does.

    It does so to images in any layout; the module's own code may refuse channels-last ones.

    Args:
        module: in evaluation mode.
        images: some for it, on its device.
    """
    return _does_the_same(module, images, lambda own: trace(own).forward, graph=True)


def is_same_in_any_layout(module: nn.Module, images: torch.Tensor) -> bool:
    """Whether a module does the same to contiguous and to channels-last images."""
    return _does_the_same(module, images, lambda own: own, graph=False)


Run = Callable[[torch.Tensor], Any]


def _does_the_same(
    module: nn.Module, images: torch.Tensor, make: Callable[[nn.Module], Run], *, graph: bool
) -> bool:
    """Whether what `make` makes of a module gives the module's expression.

    A graph is run in both layouts, and the module in one; without a graph the module in both.
    """
    if any(type(part).__name__ == "OptimizedModule" for part in module.modules()):
        return False  # it would be compiled for the CPU, and for other layouts
    try:
        if (ran := _where_it_runs(module, images, make)) is None:
            return False
        pristine, (contiguous, other) = ran
        if not graph and _reads_values(pristine, other):
            return False
        expressions = _Expressions(pristine)
        wanted = _expressed(lambda own: own, pristine, contiguous, expressions)
        return all(
            bool(_expressed(make, pristine, each, expressions) == wanted)
            for each in ((contiguous, other) if graph else (other,))
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module's own code may raise anything
        refuse_broken_device(error)
        return False


def _where_it_runs(
    module: nn.Module, images: torch.Tensor, make: Callable[[nn.Module], Run]
) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]] | None:
    """A copy of the module and images in both layouts that it runs with; None if it reads values.

    Few images on the CPU, if it can run with these: its code may need its device, or fix the number
    of images. Raises what `make` raises, and what the module raises.
    """
    few = images[:ROWS]
    for device in dict.fromkeys([torch.device("cpu"), images.device]):
        try:
            return _ran(module, few.to(device), make)
        except _Differs:
            raise
        except Exception as error:
            refuse_broken_device(error)
    return _ran(module, images, make)


def _ran(
    module: nn.Module, images: torch.Tensor, make: Callable[[nn.Module], Run]
) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]] | None:
    pristine = copy.deepcopy(module).to(images.device)
    make(copy.deepcopy(pristine))  # what torch.fx cannot read at all is refused without a run
    layouts = _layouts(images)
    return None if _reads_values(pristine, layouts[0]) else (pristine, layouts)


def _layouts(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous images, and channels-last ones of other values."""
    other = 0.7 - 3 * images
    if images.ndim != 4:
        return images.contiguous(), other.contiguous()
    return images.contiguous(), other.contiguous(memory_format=torch.channels_last)


def _reads_values(pristine: nn.Module, images: torch.Tensor) -> bool:
    """Whether its code reads the values of pixels; raises what it raises."""
    own, given = copy.deepcopy(pristine), images.clone()
    recorder = _Recorder(own, given, _Expressions(pristine))
    with recorder, ReadsOfValues(recorder.is_constant) as reads:
        own(given)
    return bool(reads.found)


def _expressed(
    make: Callable[[nn.Module], Run],
    pristine: nn.Module,
    images: torch.Tensor,
    expressions: _Expressions,
) -> Any:
    """The outputs of what is made of a copy of the module, with numbers in the place of tensors."""

    def recorded(around: Callable[[Run], Run]) -> tuple[Any, bool]:
        own, given = copy.deepcopy(pristine), images.clone()
        run = around(make(own))
        with _Recorder(own, given, expressions) as recorder:
            outputs = run(given)
        return _pytree.tree_map_only(torch.Tensor, recorder.number, outputs), recorder.writes

    try:
        outputs, _ = recorded(torch.func.functionalize)
    except _Differs:
        raise
    except Exception:  # custom functions of autograd cannot be written in this way
        outputs, writes = recorded(lambda run: run)
        if writes:
            raise _Differs("in place") from None
    return outputs


def _memory_of(module: nn.Module) -> dict[int, torch.Tensor]:
    """The memory of its parameters and buffers, as bytes, by its place."""
    found = dict[int, torch.Tensor]()
    for own in (*module.parameters(), *module.buffers()):
        if (place := _place(own)) and place not in found:
            storage = own.untyped_storage()
            found[place] = torch.empty(0, dtype=torch.uint8, device=own.device).set_(storage)
    return found


def _place(tensor: torch.Tensor) -> int:
    """Where its memory is; 0 of tensors without memory of the usual kind."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit."""
    return torch.equal(
        *(own.detach().contiguous().flatten().view(torch.uint8) for own in (one, other))
    )
