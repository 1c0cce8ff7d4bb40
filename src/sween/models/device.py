"""Where a module lives, and evaluating it without leaving a trace."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


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
