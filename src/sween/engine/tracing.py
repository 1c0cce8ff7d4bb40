"""One lock for the process-wide state that torch keeps while it traces a module.

torch.fx patches `nn.Module` and sets a flag while it traces. Two simultaneous traces would undo
each other's patch, and a compiled function called from another thread while the flag is set refuses
to run. So every trace and every call of a compiled function holds this lock until the call is
queued or compiled.
"""

import threading
from collections.abc import Callable

import torch

TRACING = threading.RLock()


def compile_locked(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.compile` for one shape; calls hold the lock."""
    compiled = torch.compile(function, dynamic=False)

    def locked(*tensors: torch.Tensor) -> torch.Tensor:
        with TRACING:
            return compiled(*tensors)

    return locked
