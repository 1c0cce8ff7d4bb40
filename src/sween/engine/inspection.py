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
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree

from sween.engine.expressions import Expressions, Recorder
from sween.engine.model_errors import refuse_broken_device
from sween.engine.value_reads import ReadsOfValues

ROWS = 2
"""Images that are evaluated; all of a batch if the code fixes their number."""


class Inspection(NamedTuple):
    """What running a module has shown.

    Attributes:
        copies: a copy of it computes the same. Also if that could not be found out.
        reads_values: its code reads values of tensors that are made of the images.
    """

    copies: bool = True
    reads_values: bool = False


def inspect_module(module: nn.Module, images: torch.Tensor) -> Inspection:
    """Run a module in evaluation mode, and a copy of it, on some of the images.

    Modules that are compiled already cannot be looked into, and have nothing found.
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
    return Inspection()


def is_compiled(module: nn.Module) -> bool:
    """Whether torch's compiler has replaced the code of a part of it."""
    return any(type(part).__name__ == "OptimizedModule" for part in module.modules())


def _inspected(module: nn.Module, images: torch.Tensor) -> Inspection:
    try:
        copied, pristine = copy.deepcopy(module), copy.deepcopy(module)
    except Exception:  # it is used itself
        return Inspection(reads_values=_run(module, images, Expressions(module))[1])
    expressions = Expressions(pristine)
    wanted, reads_values = _run(module, images, expressions)
    try:
        found, _ = _run(copied, images, expressions, original=module)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # where the original runs
        refuse_broken_device(error)
        return Inspection(copies=False, reads_values=reads_values)
    return Inspection(bool(found == wanted), reads_values)


def _run(
    module: nn.Module,
    images: torch.Tensor,
    expressions: Expressions,
    *,
    original: nn.Module | None = None,
) -> tuple[Any, bool]:
    """The outputs as expressions, and whether the code read values."""
    given = images.clone()
    recorder = Recorder(module, given, expressions, original=original, strict=False)
    with recorder, ReadsOfValues(lambda own: not recorder.is_made(own)) as reads:
        outputs = module(given)
    numbers = _pytree.tree_map_only(torch.Tensor, recorder.number, outputs)
    return numbers, reads.found or recorder.reads
