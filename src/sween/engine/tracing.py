"""One lock for what torch keeps process-wide while it traces a module.

torch.fx patches `nn.Module` and raises a flag for as long as it traces; two traces at once would
undo each other's patch, and a compiled function that is called in another thread while the flag is
up refuses to run. So whoever traces and whoever calls a compiled function holds this lock, for as
long as the call is queued, or compiles.
"""

import threading
from collections.abc import Callable

import torch

TRACING = threading.RLock()


def compile_locked(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.compile` for one shape, called under the lock."""
    compiled = torch.compile(function, dynamic=False)

    def locked(*tensors: torch.Tensor) -> torch.Tensor:
        with TRACING:
            return compiled(*tensors)

    return locked
