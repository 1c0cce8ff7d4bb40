"""Work queued on a device in steps, in turns with other work, so that the device never waits.

A few numbers have to come back to the host: how many inputs an early exit leaves, where members
come in passes of a fixed shape, and the counts of a set of images. Whoever needs one starts its
copy and gives up its turn; others queue their work until the number is there, and where there is no
room for more, the host waits while the device has something to do.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

import torch

Result = TypeVar("Result")

Steps = Generator[Callable[[], bool], None, Result]
"""Stops wherever a number is on its way to the host, saying how to learn whether it is there; goes
on with it, waiting if need be; returns what it found."""

AT_ONCE = 2
"""Pieces of work that take turns: while one waits for a number, the other keeps the device busy."""


def to_device_async(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host's tensor on a device, without waiting until the device has done what is queued."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_host_async(*tensors: torch.Tensor) -> Steps[list[torch.Tensor]]:
    """Tensors of one device on the host; gives up its turn while they come from a GPU."""
    if tensors[0].device.type != "cuda":
        return [tensor.cpu() for tensor in tensors]
    copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
    for own, tensor in zip(copies, tensors, strict=True):
        own.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensors[0].device))
    yield arrived.query
    arrived.synchronize()
    return copies


def done(result: Result) -> Steps[Result]:
    """What needs no step."""
    yield from ()
    return result


def interleave(works: Iterable[Steps[Result]], at_once: int = AT_ONCE) -> Iterator[Result]:
    """The results of all works, each as soon as it is there.

    The work that was begun first goes on once its number has come. Until then others are begun,
    as long as there is room; then the host waits for the number. Works that stop equally often end
    in their order.

    Args:
        works: taken one by one, as there is room for them.
        at_once: how many may be begun and not ended.
    """
    coming, begun = iter(works), deque[tuple[Steps[Result], Callable[[], bool]]]()
    while True:
        work = None
        if not begun or (len(begun) < at_once and not begun[0][1]()):
            work = next(coming, None)
        if work is None and begun:
            work, _ = begun.popleft()
        if work is None:
            return
        try:
            begun.append((work, next(work)))
        except StopIteration as end:
            yield end.value
