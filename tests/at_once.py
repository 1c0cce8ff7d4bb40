"""Functions that start at the same instant, one thread each."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def at_once(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Their results, in order."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], Result]) -> Result:
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(run, work) for work in works]]
