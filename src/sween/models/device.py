"""Where a module lives, evaluating it without leaving a trace, and when there is no room."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from sween.errors import SweenError


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's parameters or buffers; the CPU where it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode while the block runs; afterwards every part is in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def is_out_of_memory(error: BaseException) -> bool:
    """Torch's own error for it, or one of the many words that libraries have for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    words = ("can't allocate memory", "cannot allocate memory", "out of memory", "alloc_failed")
    return not isinstance(error, SweenError) and any(word in said for word in words)
