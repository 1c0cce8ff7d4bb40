"""Several engines, one for each GPU of the machine, at work on one list of images.

Every vote is keyed by its image, so it does not matter which engine counts it; rows come in the
order in which they are done.
"""

import queue
import threading
from collections.abc import Callable, Sequence

from sween.engine.engine import VoteEngine
from sween.records import Certificate

Item = int | list[Certificate]
"""Noisy copies done since the last such number; or the rows of one image."""

Emit = Callable[[Item], None]

Work = Callable[[VoteEngine, Sequence[int], Emit], None]
"""Certifies a group of images on an engine and emits what comes of it."""


def run_all(
    engines: Sequence[VoteEngine], groups: Sequence[Sequence[int]], work: Work, handle: Emit
) -> None:
    """Do every group of images on the engine that is free first; hand on what comes of it.

    The first error of any engine is raised here, once the others have stopped too.

    Args:
        engines: prepared, each on its own device.
        groups: images, by index.
        work: certifies one group on one engine; runs in a thread where there are several.
        handle: called in this thread with each item.
    """
    if len(engines) == 1:
        for group in groups:
            work(engines[0], group, handle)
        return
    waiting: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)
    done: queue.SimpleQueue[Item | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()

    def emit(item: Item) -> None:
        if stop.is_set():
            raise _Stopped
        done.put(item)

    def serve(engine: VoteEngine) -> None:
        try:
            while not stop.is_set():
                work(engine, waiting.get_nowait(), emit)
        except (queue.Empty, _Stopped):
            pass
        except BaseException as error:
            stop.set()
            done.put(error)
        finally:
            done.put(None)

    threads = [threading.Thread(target=serve, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    working, failure = len(threads), None
    try:
        while working:
            item = done.get()
            if item is None:
                working -= 1
            elif isinstance(item, BaseException):
                failure = failure or item
            else:
                handle(item)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failure is not None:
        raise failure


class _Stopped(BaseException):
    """Another engine failed, or the run was interrupted: leave the group where it is."""
