"""Refuses modules whose outputs depend on what was evaluated before, of which no vote may.

A certificate is about one deterministic function of one noisy image.
"""

from collections.abc import Callable

import torch
from torch import nn

from sween.engine.differences import CHANGE_ALLOWED, relative_change
from sween.engine.inspection import OTHERS, ROWS, is_compiled
from sween.engine.model_errors import refuse_broken_device
from sween.engine.module_state import same_tensors
from sween.errors import ContractError, warn_contract

ROWS_AGAIN = 16
"""Of a batch, on which a form that takes any number of images runs once more."""

Run = Callable[[torch.Tensor], torch.Tensor]


def refuse_leftovers(
    module: nn.Module,
    run: Run,
    form: nn.Module | None,
    images: torch.Tensor,
    wanted: torch.Tensor,
    *,
    dtype: torch.dtype,
    any_number: bool,
) -> None:
    """Refuse a form whose outputs depend on earlier passes, of its own or of the module.

    The module runs on other images, of which nothing may show; neither its pass nor one of the form
    may change buffers.

    Args:
        module: the original.
        run: the prepared form.
        form: the module that it runs, if it runs one.
        images: a batch.
        wanted: the module's outputs for them.
        dtype: of the arithmetic.
        any_number: whether the form takes fewer images too.
    """
    forms = [own for own in (module, form) if own is not None]
    before = [dict(own.named_buffers()) for own in forms]
    copies = [[buffer.clone() for buffer in named.values()] for named in before]
    # Nothing but the outputs shows what compiled code keeps: several kinds of images try harder.
    for make in OTHERS if is_compiled(module) else OTHERS[:1]:
        run_on_few(module, images, make)
        change = _change(run, images, wanted, CHANGE_ALLOWED[dtype], few=any_number)
        if not change <= CHANGE_ALLOWED[dtype]:
            raise ContractError(
                "model",
                expected="an output for each image that does not depend on earlier calls",
                got=f"outputs that change by {change:.2g} of their range after the model saw other "
                "images",
                fix=_KEEP_NOTHING,
            )
    for own, named, copied in zip(forms, before, copies, strict=True):
        after = dict(own.named_buffers())
        if [*after] != [*named] or not same_tensors([*after.values()], copied):
            raise ContractError(
                "model",
                expected="buffers that stay as they are in evaluation mode",
                got="buffers that a forward pass changes",
                fix="put batch norm in evaluation mode, and change other buffers in training mode "
                "alone: a certificate is about one function",
            )
    numbers = _numbers_of(module)
    run_on_few(module, images, OTHERS[0])
    after_that = _numbers_of(module)
    if changed := sorted(name for name, own in after_that.items() if numbers.get(name) != own):
        warn_contract(
            "model",
            expected="attributes that stay as they are in evaluation mode",
            got=f"{', '.join(changed)}, which each pass changes",
            fix="make sure that no output depends on them: a certificate is about one function",
        )


_KEEP_NOTHING = (
    "compute everything from the arguments of forward, and keep nothing between calls in globals, "
    "closures or other objects"
)


def _change(
    run: Run, images: torch.Tensor, wanted: torch.Tensor, allowed: float, *, few: bool
) -> float:
    """How far a form's outputs are from these; of few images if that is no more than allowed."""
    if few and isinstance(wanted, torch.Tensor) and wanted.ndim:
        try:
            found = run(images[:ROWS_AGAIN].clone())
            if (change := relative_change(found, wanted[:ROWS_AGAIN])) <= allowed:
                return change
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # its code may fix the number of images
            refuse_broken_device(error)
    # Of fewer images the outputs of a module that mixes its batch are others: it is told so later.
    return relative_change(run(images.clone()), wanted)


def _numbers_of(module: nn.Module) -> dict[str, object]:
    """Plain values among the attributes of its parts, by their dotted names."""
    return {
        f"{name}.{key}".lstrip("."): own
        for name, part in module.named_modules()
        for key, own in vars(part).items()
        if type(own) in (bool, int, float, str)
    }


def refuse_first_images(module: nn.Module, new: nn.Module, images: torch.Tensor) -> None:
    """Refuse a module that takes something over from the first images it sees, such as a scale."""
    try:
        others = OTHERS[0](images[:ROWS])
        found, wanted = new(others.clone()), module(others)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # its code may fix the number of images
        refuse_broken_device(error)
        return
    change = relative_change(found, wanted)
    if not change <= CHANGE_ALLOWED[torch.float32]:
        raise ContractError(
            "model",
            expected="the same outputs whatever images it has seen first",
            got=f"outputs that change by {change:.2g} of their range with these",
            fix="run it once on images of the training data, and keep what that gives in buffers "
            "that evaluation does not set; else: " + _KEEP_NOTHING,
        )


def run_on_few(
    module: nn.Module,
    images: torch.Tensor,
    make: Run = torch.clone,
) -> None:
    """A run for what it leaves behind; on all images where the code fixes their number."""
    try:
        module(make(images[:ROWS]))
        return
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's module may raise anything
        refuse_broken_device(error)
    module(make(images))
