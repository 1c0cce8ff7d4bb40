"""Errors of a user's module in one line, and those of the device as they are."""

import contextlib
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from sween.engine.module_state import state_of
from sween.errors import ContractError, SweenError, describe_error, first_line, is_out_of_memory


@contextlib.contextmanager
def explain_model_errors(module: nn.Module, image_shape: Sequence[int]) -> Iterator[None]:
    """Report in one line what a module raises in the block, except for errors of the device."""
    try:
        yield
    except (SweenError, Warning):  # a warning of ours, where these are errors
        raise
    except Exception as error:  # a user's module may raise anything
        if is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        kinds = {tensor.dtype for tensor in state_of(module)[1] if tensor.is_floating_point()}
        other = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
        shape = ", ".join(str(size) for size in image_shape)
        if other:
            raise ContractError(
                "model",
                expected="float32 parameters, since its images are float32",
                got=f"{', '.join(other)} ({first_line(error)})",
                fix="pass model.float(); `precision` chooses the arithmetic of the votes",
            ) from error
        raise ContractError(
            "model",
            expected=f"a forward pass over float32 images (N, {shape})",
            got=describe_error(error),
            fix="call model(images) on such a batch yourself to see where it fails",
        ) from error


def refuse_broken_device(error: Exception) -> None:
    """Re-raise errors that mean the device is out of memory or no longer usable.

    Others are the caller's to handle. Operators that torch compiles when they are called, such as
    flex attention, fail under modes that watch operations, and torch would not try to compile them
    again in this process: that it forgets.
    """
    said = str(error).lower()
    if "higherorderoperator" in said and "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if "out of memory" in said:
        raise torch.OutOfMemoryError(str(error)) from None
    if any(
        word in said for word in ("illegal memory access", "misaligned address", "launch failure")
    ):
        raise error
