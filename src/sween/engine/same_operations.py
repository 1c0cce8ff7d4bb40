"""Whether a module may be rewritten: torch.fx reads its code as it runs, in any layout of images.

torch.fx runs a module's Python code on a stand-in for the images, and keeps what is done to it.
Code that asks what it was given (`isinstance(x, torch.Tensor)`, `hasattr`, a context such as
autocast) may get another answer than a tensor gives, and then the graph is another function, which
can agree with the module on some images and not on others. Likewise `contiguous` and `reshape`
return their input or a copy of it, depending on the layout, which matters to code that then writes
in place. So both are run in both layouts, and the outputs are written as expressions of the images,
down to torch's own operations. If all are the same, so is the function, for any images: code that
reads the values of pixels, which may take another way for others, is refused.

Operations in place are written as what they give (`torch.func.functionalize`): torch.fx reads
`x -= y` as `x = x - y`, which is the same unless something else still reads `x`.

All this is about code, not about a device, and is done on the CPU if the module runs there: a GPU's
libraries have several operations for one layer. It is done with two images: code that goes another
way for more of them would not be noticed.
"""

import copy
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from sween.engine.model_errors import refuse_broken_device
from sween.engine.tracing import trace

ROWS = 2
"""Images that are evaluated."""

aten = torch.ops.aten

_RESHAPED = (aten.view, aten._unsafe_view, aten._reshape_alias, aten.reshape, aten.view_copy)
_COPIED = (aten.clone, aten.alias, aten.detach, aten.contiguous, aten._to_copy, aten.as_strided)
"""Copies, or other names, of their input, if type, shape and values are the same."""

_ABOUT_SHAPES = (aten._fused_sdp_choice, aten.is_same_size)
"""Operations that return numbers which do not depend on the values of a tensor."""

_READS = {"numpy", "tolist", "item", "data_ptr", "equal", "allclose", "is_nonzero"} | {
    f"__{name}__" for name in ("array", "bool", "int", "float", "complex", "index", "contains")
}
"""Functions of a tensor that give Python its values."""


class _Differs(Exception):
    """The outputs cannot be written as one expression for all images."""


class _Expressions:
    """Numbers for expressions: two have the same number if they are the same."""

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        """`own` are the module's parameters and buffers, which are known by identity."""
        self._numbers: dict[Hashable, int] = {}
        self._tensors = WeakTensorKeyDictionary()
        self._constants: dict[Hashable, list[tuple[torch.Tensor, int]]] = {}
        for position, tensor in enumerate(own):
            self.put(tensor, self.of(("own", position)))

    def of(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def put(self, tensor: torch.Tensor, number: int) -> None:
        """What a tensor stands for, from now on."""
        self._tensors[tensor] = number

    def forget(self, tensor: torch.Tensor) -> None:
        """It has other values from now on."""
        self._tensors.pop(tensor, None)  # type: ignore[no-untyped-call]

    def number(self, tensor: torch.Tensor) -> int:
        """A tensor that is not made of the images stands for its values."""
        known = self._tensors.get(tensor)  # type: ignore[no-untyped-call]
        if known is None:
            kind = (tensor.dtype, tensor.shape, tensor.device)
            alike = self._constants.setdefault(kind, [])
            known = next((own for constant, own in alike if _equal(constant, tensor)), None)
            if known is None:
                known = self.of(("constant", kind, len(alike)))
                alike.append((tensor.detach().clone(), known))  # it may be written to later
            self.put(tensor, known)
        return int(known)


class _Recorder(TorchDispatchMode):
    """Keeps what tensors that are made of the images stand for.

    Attributes:
        writes: whether one of them was changed in place.
    """

    def __init__(self, images: torch.Tensor, expressions: _Expressions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes = False
        self._expressions, self._made = expressions, WeakTensorKeyDictionary()
        self._make(images, expressions.of("images"))

    def _make(self, tensor: torch.Tensor, number: int) -> None:
        self._made[tensor] = True
        self._expressions.put(tensor, number)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves, shape = _pytree.tree_flatten((args, kwargs))
        tensors = [own for own in leaves if isinstance(own, torch.Tensor)]
        of_images = any(own in self._made for own in tensors)
        if of_images:
            key = (func, str(shape), *map(self._written, leaves))
        before = args[0].clone() if func.overloadpacket is aten.as_strided_ else None
        found = func(*args, **kwargs)
        if before is not None and before.shape == found.shape and torch.equal(before, found):
            return found  # by the pooling of channels-last images: another layout, no other values
        if func._schema.is_mutable:
            self.writes |= of_images
            for own in tensors:
                if own not in self._made:
                    self._expressions.forget(own)
        if of_images:
            _refuse_values(func, found)
            for position, own in enumerate(_pytree.tree_leaves(found)):
                if isinstance(own, torch.Tensor) and own not in self._made:
                    self._make(own, self._number(func, args, own, (key, position)))
        return found

    def _number(self, func: Any, args: tuple[Any, ...], made: torch.Tensor, key: Hashable) -> int:
        """Of a result, whose layout does not matter."""
        packet, first = func.overloadpacket, args[0] if args else None
        if not isinstance(first, torch.Tensor) or first.dtype != made.dtype:
            return self._expressions.of(key)
        if packet in _RESHAPED:
            return self._expressions.of(
                ("reshape", self._expressions.number(first), tuple(made.shape))
            )
        if packet in _COPIED and first.shape == made.shape and torch.equal(first, made):
            return self._expressions.number(first)
        return self._expressions.of(key)

    def _written(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return torch.Tensor, self._expressions.number(value)
        return type(value), repr(value) if isinstance(value, float) else value  # NaN, and -0


def _refuse_values(func: Any, found: Any) -> None:
    """Refuse operations whose results are known to Python, or random."""
    random = torch.Tag.nondeterministic_seeded in func.tags
    attention = "scaled_dot_product" in func.name()  # random with dropout alone
    plain = any(type(own) in (bool, int, float) for own in _pytree.tree_leaves(found))
    if (random and not attention) or (plain and func.overloadpacket not in _ABOUT_SHAPES):
        raise _Differs(func.name())


class _Watch(TorchFunctionMode):
    """Notices code that reads values, even if it goes on after an error; `known` may be read."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.reads = False
        self._known = {id(own) for own in known}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _READS and id(args[0]) not in self._known:
            self.reads = True
        return func(*args, **(kwargs or {}))


def is_read_rightly(module: nn.Module, images: torch.Tensor) -> bool:
    """Whether the graph that `trace` makes of a module does what the module does.

    It does so to images in any layout; the module's own code may refuse channels-last ones.

    Args:
        module: in evaluation mode.
        images: some for it, on its device.
    """
    return _all_the_same(
        module,
        images,
        lambda own, layouts: [(own, layouts[0]), *((trace(own).forward, each) for each in layouts)],
    )


def is_same_in_any_layout(module: nn.Module, images: torch.Tensor) -> bool:
    """Whether a module does the same to contiguous and to channels-last images.

    Only those with convolutions are given the latter.
    """
    if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
        return True
    return _all_the_same(module, images, lambda own, layouts: [(own, each) for each in layouts])


Run = Callable[[torch.Tensor], Any]
Runs = Iterable[tuple[Run, torch.Tensor]]
"""With the images for each."""


def _all_the_same(
    module: nn.Module,
    images: torch.Tensor,
    runs: Callable[[nn.Module, list[torch.Tensor]], Runs],
) -> bool:
    """Whether runs of a copy of the module, for images in both layouts, give one expression."""
    try:
        own, given = _where_it_runs(module, images)
        if _reads_values(own, given):
            return False
        expressions = _Expressions(_tensors_of(own))
        first, *others = (
            _expressed(run, layout, expressions) for run, layout in runs(own, _layouts(given))
        )
        return all(bool(other == first) for other in others)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module's own code may raise anything
        refuse_broken_device(error)
        return False


def _where_it_runs(module: nn.Module, images: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """A copy of the module and images that it runs with: few of them on the CPU, if it can.

    Its code may need its device, or fix the number of images.
    """
    own, few = copy.deepcopy(module), images[:ROWS]
    for device in dict.fromkeys([torch.device("cpu"), images.device]):
        try:
            own.to(device)(few.to(device, copy=True))
        except Exception as error:
            refuse_broken_device(error)
        else:
            return own, few.to(device)
    return own, images


def _layouts(images: torch.Tensor) -> list[torch.Tensor]:
    if images.ndim != 4:
        return [images.contiguous()]
    return [images.contiguous(), images.contiguous(memory_format=torch.channels_last)]


def _reads_values(own: nn.Module, images: torch.Tensor) -> bool:
    """Whether its code reads the values of pixels; raises what it raises."""
    with _Watch(_tensors_of(own)) as watch:
        own(images.clone())
    return bool(watch.reads)


def _tensors_of(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _expressed(run: Run, images: torch.Tensor, expressions: _Expressions) -> Any:
    """The outputs, with numbers in the place of tensors."""
    try:
        outputs, _ = _recorded(torch.func.functionalize(run), images, expressions)
    except _Differs:
        raise
    except Exception:  # custom functions of autograd cannot be written in this way
        outputs, writes = _recorded(run, images, expressions)
        if writes:
            raise _Differs("in place") from None
    return outputs


def _recorded(run: Run, images: torch.Tensor, expressions: _Expressions) -> tuple[Any, bool]:
    """See `_expressed`; also whether something made of the images was changed in place."""
    given = images.clone()
    with _Recorder(given, expressions) as recorder:
        outputs = run(given)
    return _pytree.tree_map_only(torch.Tensor, expressions.number, outputs), recorder.writes


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit."""
    return torch.equal(
        *(own.detach().contiguous().flatten().view(torch.uint8) for own in (one, other))
    )
