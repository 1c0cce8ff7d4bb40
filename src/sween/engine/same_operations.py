"""Whether torch.fx read a module's code as it runs.

torch.fx runs a module's Python code on a stand-in for the images, and keeps what is done to it.
Code that asks what it was given (`isinstance(x, torch.Tensor)`, `hasattr`, a context such as
autocast) may get another answer than a tensor gives, and then the graph is another function, which
can agree with the module on some images and not on others. So both are run, and the outputs are
written as expressions of the images, down to torch's own operations. If these are the same, the two
compute the same for all images, as long as no Python code depends on the values of pixels, which
torch.fx refuses.

Operations in place are written as what they give (`torch.func.functionalize`): torch.fx reads
`x -= y` as `x = x - y`, which is the same unless something else still reads `x`.
"""

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sween.engine.model_errors import refuse_broken_device
from sween.engine.tracing import trace_unchanged


class _Expressions:
    """Numbers for expressions: two have the same number if they are the same."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._tensors: dict[int, int] = {}
        self._constants: list[tuple[torch.Tensor, int]] = []
        self._alive: list[torch.Tensor] = []  # an id may be given again once its tensor is gone

    def of(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def put(self, tensor: torch.Tensor, number: int) -> None:
        """What a tensor stands for, from now on."""
        self._tensors[id(tensor)] = number
        self._alive.append(tensor)

    def known(self, tensor: torch.Tensor) -> bool:
        """Whether it stands for an expression of the images, or was met as a constant before."""
        return id(tensor) in self._tensors

    def number(self, tensor: torch.Tensor) -> int:
        """A tensor that is not made of the images stands for its values."""
        if not self.known(tensor):
            number = next(
                (own for constant, own in self._constants if _equal(constant, tensor)), None
            )
            if number is None:
                number = self.of(("constant", len(self._constants)))
                self._constants.append((tensor, number))
            self.put(tensor, number)
        return self._tensors[id(tensor)]


class _Recorder(TorchDispatchMode):
    """Keeps what tensors that are made of the images stand for."""

    def __init__(self, images: torch.Tensor, expressions: _Expressions) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._expressions, self._made = expressions, {id(images)}
        expressions.put(images, expressions.of("images"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        leaves, shape = _pytree.tree_flatten((args, kwargs))
        if not any(id(own) in self._made for own in leaves):
            return found
        key = (func, str(shape), *map(self._written, leaves))
        for position, own in enumerate(_pytree.tree_leaves(found)):
            if isinstance(own, torch.Tensor) and id(own) not in self._made:
                self._made.add(id(own))
                self._expressions.put(own, self._expressions.of((key, position)))
        return found

    def _written(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return torch.Tensor, self._expressions.number(value)
        return type(value), value


def is_read_rightly(module: nn.Module, images: torch.Tensor) -> bool:
    """Whether the graph that torch.fx makes of a module does what the module does.

    Args:
        module: in evaluation mode.
        images: some for it, on its device.
    """
    try:
        own = copy.deepcopy(module)
        traced = trace_unchanged(own)
        try:
            return _do_the_same(own, traced, images[:2])
        except Exception as error:  # its code may fix the number of images
            refuse_broken_device(error)
            return _do_the_same(own, traced, images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module's own code may raise anything
        refuse_broken_device(error)
        return False


def _do_the_same(one: Callable[..., Any], other: Callable[..., Any], images: torch.Tensor) -> bool:
    expressions = _Expressions()
    outputs = [_expressed(run, images.clone(), expressions) for run in (one, other)]
    return bool(outputs[0] == outputs[1])


def _expressed(run: Callable[..., Any], images: torch.Tensor, expressions: _Expressions) -> Any:
    """The outputs, with numbers in the place of tensors."""
    with _Recorder(images, expressions):
        outputs = torch.func.functionalize(run)(images)
    return _pytree.tree_map_only(torch.Tensor, expressions.number, outputs)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same values; NaN are equal to each other."""
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    return torch.equal(one, other) or (
        one.is_floating_point()
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )
