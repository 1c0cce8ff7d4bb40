"""Whether another form of a module gives its outputs, and whether it gives the same ones again."""

import torch
from torch import nn

from sween.engine.differences import (
    CHANGE_ALLOWED,
    SAME_OUTPUT,
    class_scales,
    largest_difference,
    relative_change,
)
from sween.engine.model_errors import refuse_broken_device
from sween.engine.tf32 import without_tf32
from sween.errors import ContractError

ROWS_COMPARED = 256
"""Of a batch, on which the module is called twice, and forms of it are compared with it, some in
full float32, which is slow on a GPU; the outputs of the form that votes are compared on all."""


def computes_the_same(form: nn.Module, module: nn.Module, images: torch.Tensor) -> bool:
    """Whether a network written differently computes what the module does, on some of the images.

    In float32, where the change allowed is small: by default torch lets GPUs round the products of
    a convolution to TF32, which is as coarse as float16.
    """
    with without_tf32():
        few, wanted = on_few(module, images)
        try:
            found = form(few.clone())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what was traced may not run
            refuse_broken_device(error)
            return False
    return relative_change(found, wanted) <= CHANGE_ALLOWED[torch.float32]


def on_few(
    module: nn.Module, images: torch.Tensor, wanted: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images and the module's outputs for them; all if its code fixes their number.

    `wanted` are the outputs for all images, if they are known.
    """
    few = images[:ROWS_COMPARED]
    if wanted is not None and len(few) == len(images):
        return images, wanted
    try:
        return few, module(few.clone())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's module may raise anything
        refuse_broken_device(error)
        return images, module(images.clone()) if wanted is None else wanted


def refuse_random(first: object, second: object) -> None:
    """Refuse a module whose outputs for one batch change from call to call.

    Tracing would freeze its random draws and make it look deterministic.
    """
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return  # refused later, with a better message
    if first.ndim != 2 or first.shape != second.shape or not torch.isfinite(first).all():
        return
    difference = largest_difference(second, first, class_scales(first))
    if not difference <= SAME_OUTPUT:
        raise ContractError(
            "model",
            expected="the same outputs each time it sees a batch",
            got=f"outputs that change by {difference:.2g} of their range",
            fix="put dropout in evaluation mode and turn off anything else that is random",
        )
