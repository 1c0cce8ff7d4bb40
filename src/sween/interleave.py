"""Interleaves tasks that wait for device-to-host copies, so that the device always has work queued.

A few numbers have to come back to the host: how many inputs are left after an early exit, if
members run in passes of a fixed shape, and the counts of a set of images. A task that needs one
starts an asynchronous copy and yields; other tasks queue their work until the copy has finished.
Once as many tasks are in flight as allowed, the host waits, while the device still has work to do.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

import torch

Result = TypeVar("Result")

Steps = Generator[Callable[[], bool], None, Result]
"""A task: yields a readiness check whenever it starts a device-to-host copy, waits for that copy
when resumed, and returns its result."""

AT_ONCE = 2
"""Tasks in flight: while one waits for a copy, the other keeps the device busy."""


def to_device_async(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to a device without waiting for the work queued there."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_host_async(*tensors: torch.Tensor) -> Steps[list[torch.Tensor]]:
    """Copy tensors of one device to the host; yields while they are copied from a GPU."""
    if tensors[0].device.type != "cuda":
        return [tensor.cpu() for tensor in tensors]
    copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensors[0].device))
    yield arrived.query
    arrived.synchronize()
    return copies


def done(result: Result) -> Steps[Result]:
    """A task whose result is already known."""
    yield from ()
    return result


def interleave(tasks: Iterable[Steps[Result]], at_once: int = AT_ONCE) -> Iterator[Result]:
    """The results of all tasks, each as soon as it is available.

    The oldest task resumes once its copy has finished. Until then new tasks are started, up to
    `at_once`; beyond that the host waits for the copy. Tasks that yield equally often finish in
    order.

    Args:
        tasks: consumed one by one, as slots become free.
        at_once: the most tasks in flight.
    """
    coming, started = iter(tasks), deque[tuple[Steps[Result], Callable[[], bool]]]()
    while True:
        task = None
        if not started or (len(started) < at_once and not started[0][1]()):
            task = next(coming, None)
        if task is None and started:
            task, _ = started.popleft()
        if task is None:
            return
        try:
            started.append((task, next(task)))
        except StopIteration as end:
            yield end.value
