"""Where a module is."""

import itertools

import torch
from torch import nn


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's parameters or buffers; the CPU if it has none."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        return tensor.device
    return torch.device("cpu")
