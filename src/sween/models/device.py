"""Where a module lives, evaluating it without leaving a trace, and when there is no room."""

import contextlib
import threading
import weakref
from collections.abc import Iterator

import torch
from torch import nn

from sween.errors import SweenError


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's parameters or buffers; the CPU where it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Every part of a module once, the module first.

    As `module.modules()`, in a fifth of its time: a call that counts few votes walks a model often.
    """
    parts, seen = [module], {id(module)}
    for part in parts:  # which grows meanwhile
        for child in part._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                parts.append(child)
    return parts


class _Modes:
    """The modes to restore, shared by all threads.

    Two threads may evaluate modules with parts in common. The first to come saves the mode of a
    part, the last to go restores it: a part that went back to training mode when the first of them
    is done would answer the other one differently.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._saved = weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]]()

    def enter(self, parts: list[nn.Module]) -> bool:
        """Save the modes; False where there is nothing to save, nor anybody who would restore."""
        with self._lock:
            shared = len(self._saved) and any(part in self._saved for part in parts)
            if not shared and not any(part.training for part in parts):
                return False
            for part in parts:
                users, mode = self._saved.get(part, (0, part.training))
                self._saved[part] = (users + 1, mode)
        return True

    def leave(self, parts: list[nn.Module]) -> None:
        with self._lock:
            for part in parts:
                users, mode = self._saved.pop(part)
                if users > 1:
                    self._saved[part] = (users - 1, mode)
                else:
                    part.training = mode


_MODES = _Modes()


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode while the block runs; afterwards every part is in the mode it was in.

    Blocks of several threads may overlap, over one module or over modules that share parts.
    """
    parts = parts_of(module)
    if not _MODES.enter(parts):
        yield
        return
    try:
        module.eval()
        yield
    finally:
        _MODES.leave(parts)


def is_out_of_memory(error: BaseException) -> bool:
    """Torch's own error for it, or one of the many words that libraries have for it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error).lower()
    words = ("can't allocate memory", "cannot allocate memory", "out of memory", "alloc_failed")
    return not isinstance(error, SweenError) and any(word in said for word in words)
