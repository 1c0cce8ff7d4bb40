"""Processes that belong to a test."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """All processes below one, with their command lines."""
    parents, lines = dict[int, int](), dict[int, str]()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            lines[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    for process, line in lines.items():
        above = process
        while above in parents and above != root:
            above = parents[above]
        if above == root and process != root:
            yield process, line


def actors(root: int) -> list[int]:
    """The workers of a Ray that a process started."""
    return [process for process, line in descendants(root) if line.startswith("ray::RayActor")]


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
