"""What preparing a module has to know of its code: whether a copy of it computes the same, and
whether it reads the values of pixels.

A prepared member is a copy. A copy follows what is kept in the module, and not what its code
reaches in another way: a hook or a layer that reads `self.gain` by a closure or a weak reference
still reads the attribute of the original, with what the original's last run left there. So the
module and its copy are run on the same images, and their outputs written as expressions of these
(`expressions.py`), which differ there.

Code that decides by the values of a batch, as by `if x.max() > 1`, computes an image's output from
the others too, and tests on some images cannot show that it does not. It is given one image at a
time.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree

from sween.engine.expressions import Expressions, Recorder, memory_of
from sween.engine.model_errors import refuse_broken_device
from sween.engine.value_reads import ReadsOfValues

ROWS = 2
"""Images that are evaluated; all of a batch if the code fixes their number."""


class Inspection(NamedTuple):
    """What running a module has shown.

    Attributes:
        copies: a copy of it computes the same. Also if that could not be found out.
        reads_values: its code reads values of tensors that are made of the images. Also if that
            could not be found out.
    """

    copies: bool = True
    reads_values: bool = False


def inspect_module(module: nn.Module, images: torch.Tensor) -> Inspection:
    """Run a module in evaluation mode, and a copy of it, on some of the images.

    Modules that are compiled already cannot be looked into, and have nothing found. One whose
    operations cannot be followed for another reason counts as reading values.
    """
    if is_compiled(module):
        return Inspection()
    for some in (images[:ROWS], images):
        try:
            return _inspected(module, some)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a user's module may raise anything
            refuse_broken_device(error)
    return Inspection(reads_values=True)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch's compiler has replaced the code of a part of it."""
    return any(type(part).__name__ == "OptimizedModule" for part in module.modules())


A_COPY_DIFFERS = (
    "one of which a copy computes something else: a hook or a layer of it reaches the original, by "
    "a closure or a weak reference"
)

OTHERS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda images: 0.7 - 3 * images,
    torch.zeros_like,
    torch.ones_like,
    lambda images: 3 * images,
)
"""Images of the same shape that code may well treat in another way."""


def _inspected(module: nn.Module, images: torch.Tensor) -> Inspection:
    try:
        copied, pristine = _copied(module), _copied(module)
    except Exception:  # it is used itself
        return Inspection(reads_values=_run(module, images, Expressions(module))[1])
    by_values = _sizes(module) != _sizes(copied)
    expressions = Expressions(pristine)
    wanted, reads_values = _run(module, images, expressions, by_values=by_values)
    # A number that code has read stands in no expression: it has to be another one.
    for make in OTHERS if reads_values else [None]:
        try:
            if make is not None:
                module(make(images))
        except Exception as error:  # its code may refuse such images
            refuse_broken_device(error)
            continue
        try:
            found, _ = _run(copied, images, expressions, original=module, by_values=by_values)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # where the original runs
            refuse_broken_device(error)
            return Inspection(copies=False, reads_values=reads_values)
        if found != wanted:
            return Inspection(copies=False, reads_values=reads_values)
    return Inspection(True, reads_values)


def _copied(module: nn.Module) -> nn.Module:
    copied = copy.deepcopy(module)
    for own, other in zip(module.parameters(), copied.parameters(), strict=True):
        other.requires_grad_(own.requires_grad)  # TorchScript forgets it, and computes otherwise
    return copied


def _sizes(module: nn.Module) -> list[int]:
    """Of the memory of its parameters and buffers: those that share some do not in a copy."""
    return [len(own) for own in memory_of(module).values()]


def _run(
    module: nn.Module,
    images: torch.Tensor,
    expressions: Expressions,
    *,
    original: nn.Module | None = None,
    by_values: bool = False,
) -> tuple[Any, bool]:
    """The outputs as expressions, and whether the code read values."""
    given = images.clone()
    recorder = Recorder(
        module, given, expressions, original=original, by_values=by_values, strict=False
    )
    with recorder, ReadsOfValues(lambda own: not recorder.is_made(own)) as reads:
        outputs = module(given)
    numbers = _pytree.tree_map_only(torch.Tensor, recorder.number, outputs)
    return numbers, reads.found or recorder.reads
