"""Where a module is, and where it can be."""

import itertools

import torch
from torch import nn

from sween.errors import BadInput


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's parameters or buffers; the CPU if it has none."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        return tensor.device
    return torch.device("cpu")


def as_device(what: str, device: object, *, fix: str = "try cpu") -> torch.device:
    """A CPU or an available GPU; `what` is the argument's name in errors."""
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in {"cpu", "cuda"}:
        raise BadInput(what, expected="cpu or cuda", got=device, fix=fix)
    count = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= count:
        raise BadInput(what, expected="an available GPU", got=f"{found} of {count} GPUs", fix=fix)
    return torch.device(found)
