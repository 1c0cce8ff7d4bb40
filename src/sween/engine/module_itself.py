"""Modules that vote by their own code: one image at a time, or in one thread at a time."""

import threading
import weakref
from contextlib import AbstractContextManager

import torch
from torch import nn


class OneAtATime(nn.Module):
    """A module that is given its images one at a time, whatever their number.

    Its output for an image is then a function of that image, whatever its code does to a batch.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.module(image) for image in torch.split(images, 1)])


class Exclusive:
    """Runs a module that is no copy, in one thread at a time: it may keep something meanwhile."""

    def __init__(self, form: nn.Module, module: nn.Module) -> None:
        self._form, self._lock = form, lock_of(module)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with self._lock:
            outputs: torch.Tensor = self._form(images)
            return outputs


_LOCKS = weakref.WeakKeyDictionary[nn.Module, AbstractContextManager[object]]()
_ONE_BY_ONE = threading.Lock()


def lock_of(module: nn.Module) -> AbstractContextManager[object]:
    """For passes of a module that may keep something between its layers, and for preparing it."""
    own = module.module if isinstance(module, OneAtATime) else module
    with _ONE_BY_ONE:
        return _LOCKS.setdefault(own, threading.RLock())
