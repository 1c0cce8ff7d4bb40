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
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from sween.engine.expressions import Differs, Expressions, Recorder
from sween.engine.inspection import ROWS, is_compiled
from sween.engine.model_errors import refuse_broken_device
from sween.engine.tracing import trace
from sween.engine.value_reads import ReadsOfValues


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
    if is_compiled(module):
        return False  # it would be compiled for the CPU, and for other layouts
    try:
        if (ran := _where_it_runs(module, images, make)) is None:
            return False
        pristine, (contiguous, other) = ran
        if not graph and _reads_values(pristine, other):
            return False
        expressions = Expressions(pristine)
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
        except Differs:
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
    recorder = Recorder(own, given, Expressions(pristine))
    with recorder, ReadsOfValues(recorder.is_constant) as reads:
        own(given)
    return bool(reads.found or reads.replaced)


def _expressed(
    make: Callable[[nn.Module], Run],
    pristine: nn.Module,
    images: torch.Tensor,
    expressions: Expressions,
) -> Any:
    """The outputs of what is made of a copy of the module, with numbers in the place of tensors."""

    def recorded(around: Callable[[Run], Run]) -> tuple[Any, bool]:
        own, given = copy.deepcopy(pristine), images.clone()
        run = around(make(own))
        with Recorder(own, given, expressions) as recorder:
            outputs = run(given)
        return _pytree.tree_map_only(torch.Tensor, recorder.number, outputs), recorder.writes

    try:
        outputs, _ = recorded(torch.func.functionalize)
    except Differs:
        raise
    except Exception:  # custom functions of autograd cannot be written in this way
        outputs, writes = recorded(lambda run: run)
        if writes:
            raise Differs("in place") from None
    return outputs
