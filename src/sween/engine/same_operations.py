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

Operations in place are written as what they give: torch.fx reads `x -= y` as `x = x - y`, which is
the same unless something else still reads `x`. Where something else shares its memory, as a view
does, all is run again by `torch.func.functionalize`, which follows views, and takes longer. Each
run is of a copy of its own, since code may change the module when it runs, or when it is traced.
For what no operation shows, as a write by another library, outputs are compared at the end, on
images of more contrast.

All this is about code, not about a device, and is done on the CPU if the module runs there: a GPU's
libraries have several operations for one layer. It is done with two images: code that goes another
way for more of them would not be noticed.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
Make = Callable[[nn.Module], Run]


class _Recorded(NamedTuple):
    """A run: its outputs, with numbers in the place of tensors, and what `Recorder` found."""

    outputs: Any
    entangled: bool
    unclear: bool


class _Start(NamedTuple):
    """A copy of a module that nothing has run, images in both layouts that the module runs with,
    its run on the first, and what was made of another copy."""

    pristine: nn.Module
    images: tuple[torch.Tensor, torch.Tensor]
    expressions: Expressions
    wanted: _Recorded
    made: tuple[nn.Module, Run]


def _does_the_same(module: nn.Module, images: torch.Tensor, make: Make, *, graph: bool) -> bool:
    """Whether what `make` makes of a module gives the module's expression.

    A graph is run in both layouts, and the module in one; without a graph the module in both.
    """
    if is_compiled(module):
        return False  # it would be compiled for the CPU, and for other layouts
    try:
        if (start := _where_it_runs(module, images, make)) is None:
            return False
        if not graph and _reads_values(start.pristine, start.images[1]):
            return False
        runs, compared = [start.wanted], start.images if graph else start.images[1:]
        for position, given in enumerate(compared):
            own, run = start.made if position == 0 else _made(make, start.pristine)
            runs.append(_recorded(run, own, given, start.expressions))
        if any(found.unclear for found in runs):
            return False
        if any(found.entangled for found in runs):
            same = _does_the_same_without_writes(start, compared, make)
        else:
            same = all(found.outputs == start.wanted.outputs for found in runs)
        return same and (not graph or _has_the_same_outputs(start, make))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a module's own code may raise anything
        refuse_broken_device(error)
        return False


def _where_it_runs(module: nn.Module, images: torch.Tensor, make: Make) -> _Start | None:
    """The module's first run; None if its code reads the values of pixels.

    Few images on the CPU, if it can run with these: its code may need its device, or fix the number
    of images. Raises what `make` raises, and what the module raises.
    """
    few = images[:ROWS]
    for device in dict.fromkeys([torch.device("cpu"), images.device]):
        try:
            return _started(module, few.to(device), make)
        except Differs:
            raise
        except Exception as error:
            refuse_broken_device(error)
    return _started(module, images, make)


def _started(module: nn.Module, images: torch.Tensor, make: Make) -> _Start | None:
    pristine = copy.deepcopy(module).to(images.device)
    made = _made(make, pristine)  # what torch.fx cannot read at all is refused without a run
    layouts, expressions = _layouts(images), Expressions(pristine)
    if _reads_values(pristine, layouts[0]):
        return None
    own = copy.deepcopy(pristine)
    wanted = _recorded(own, own, layouts[0], expressions)
    return _Start(pristine, layouts, expressions, wanted, made)


def _reads_values(pristine: nn.Module, images: torch.Tensor) -> bool:
    """Whether its code reads the values of pixels; raises what it raises.

    A run of its own: code may ask whether somebody watches, as torch's attention does.
    """
    own, given = copy.deepcopy(pristine), images.clone()
    recorder = Recorder(own, given, Expressions(pristine), by_use=True)
    with recorder, ReadsOfValues(recorder.is_constant) as reads:
        own(given)
    return bool(reads.found or reads.replaced or not recorder.saw_all_changes())


def _made(make: Make, pristine: nn.Module) -> tuple[nn.Module, Run]:
    """A copy of a module, and what `make` makes of it."""
    own = copy.deepcopy(pristine)
    return own, make(own)


def _layouts(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous images, and channels-last ones of other values."""
    other = 0.7 - 3 * images
    if images.ndim != 4:
        return images.contiguous(), other.contiguous()
    return images.contiguous(), other.contiguous(memory_format=torch.channels_last)


def _recorded(
    run: Run, own: nn.Module, images: torch.Tensor, expressions: Expressions
) -> _Recorded:
    """A run of what was made of `own`."""
    given = images.clone()
    with Recorder(own, given, expressions) as recorder:
        outputs = run(given)
    numbers = _pytree.tree_map_only(torch.Tensor, recorder.number, outputs)
    if not recorder.saw_all_changes():
        raise Differs("parameters that are changed by other means than torch's operations")
    return _Recorded(numbers, recorder.entangled, recorder.unclear)


def _does_the_same_without_writes(
    start: _Start, compared: Sequence[torch.Tensor], make: Make
) -> bool:
    """The same, of runs in which torch writes operations in place as what they give."""
    wanted = _without_writes(lambda own: own, start.pristine, start.images[0], start.expressions)
    return all(
        bool(_without_writes(make, start.pristine, images, start.expressions) == wanted)
        for images in compared
    )


def _without_writes(
    make: Make, pristine: nn.Module, images: torch.Tensor, expressions: Expressions
) -> Any:
    own, run = _made(make, pristine)
    try:
        return _recorded(torch.func.functionalize(run), own, images, expressions).outputs
    except Differs:
        raise
    except Exception:  # custom functions of autograd cannot be written in this way
        own, run = _made(make, pristine)
        found = _recorded(run, own, images, expressions)
        if found.entangled:
            raise Differs("in place") from None
        return found.outputs


def _has_the_same_outputs(start: _Start, make: Make) -> bool:
    """Whether images of more contrast show nothing else that was not seen."""
    (_, run), module = _made(make, start.pristine), copy.deepcopy(start.pristine)
    given = 4 * start.images[0] - 1.5
    try:
        wanted = _pytree.tree_leaves(module(given.clone()))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # its code may refuse such images
        refuse_broken_device(error)
        return True
    found = _pytree.tree_leaves(run(given))
    return all(
        not isinstance(other, torch.Tensor)
        or torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
        for one, other in zip(found, wanted, strict=True)
    )
