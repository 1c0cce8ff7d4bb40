"""Work queued on a device in steps, in turns with other work, so that the device never waits.

A few numbers have to come back to the host: how many inputs an early exit leaves, where members
come in passes of a fixed shape, and the counts of a set of images. Whoever needs one starts its
copy and gives up its turn; others queue their work, and when the turn comes again the number is
there, or the host waits while the device has something to do.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

import torch

Result = TypeVar("Result")

Steps = Generator[None, None, Result]
"""Stops wherever a number is on its way to the host; returns what it found."""

AT_ONCE = 2
"""Pieces of work that take turns: while one waits for a number, the other keeps the device busy."""


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host's tensor on a device, without waiting until the device has done what is queued."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def fetched(*tensors: torch.Tensor) -> Steps[list[torch.Tensor]]:
    """The tensors on the host; gives up its turn while they come from a GPU."""
    if not any(tensor.device.type == "cuda" for tensor in tensors):
        return [tensor.cpu() for tensor in tensors]
    copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
    for own, tensor in zip(copies, tensors, strict=True):
        own.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensors[0].device))
    yield
    arrived.synchronize()
    return copies


def known(result: Result) -> Steps[Result]:
    """What needs no step."""
    yield from ()
    return result


def finish(steps: Steps[Result]) -> Result:
    """What the steps return, one after the other with nothing in between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def in_turns(works: Iterable[Steps[Result]], at_once: int = AT_ONCE) -> Iterator[Result]:
    """The results of all works, each as soon as it is there.

    A work is begun as soon as there is room; only then do others go on. Works that stop equally
    often end in their order.

    Args:
        works: taken one by one, as there is room for them.
        at_once: how many may be begun and not ended.
    """
    coming, begun = iter(works), deque[Steps[Result]]()
    while True:
        work = next(coming, None) if len(begun) < at_once else None
        if work is None and begun:
            work = begun.popleft()
        if work is None:
            return
        try:
            next(work)
        except StopIteration as end:
            yield end.value
        else:
            begun.append(work)
