"""Several engines, one per GPU of the machine, that share one list of images.

Noise is keyed by the image, so it does not matter which engine counts a vote.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from sween.engine.engine import VoteEngine

Item = TypeVar("Item")

Work = Callable[[VoteEngine, Sequence[int], Callable[[int], None]], Iterator[Item]]
"""Processes a group of images on an engine and yields the result of each; reports its progress."""


def run_all(
    engines: Sequence[VoteEngine],
    groups: Sequence[Sequence[int]],
    work: Work[Item],
    on_progress: Callable[[int], None],
) -> Generator[Item, None, None]:
    """Process every group of images on the next free engine; yield the results.

    With several engines, results come in order of completion. The first error of any engine is
    raised here, once the others have stopped.

    Args:
        engines: prepared, each on its own device.
        groups: images, by index.
        work: processes one group on one engine; runs in a thread per engine if there are several.
        on_progress: called in this thread.
    """
    if len(engines) == 1:
        for group in groups:
            yield from work(engines[0], group, on_progress)
        return
    waiting: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)
    done: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    stop = threading.Event()

    def emit(kind: str, item: object) -> None:
        if stop.is_set():
            raise _Stopped
        done.put((kind, item))

    def serve(engine: VoteEngine) -> None:
        try:
            while not stop.is_set():
                group = waiting.get_nowait()
                for item in work(engine, group, lambda copies: emit("progress", copies)):
                    emit("item", item)
        except (queue.Empty, _Stopped):
            pass
        except BaseException as error:
            stop.set()
            done.put(("error", error))
        finally:
            done.put(("end", None))

    threads = [threading.Thread(target=serve, args=(engine,), daemon=True) for engine in engines]
    for thread in threads:
        thread.start()
    working, failure = len(threads), list[BaseException]()
    try:
        while working:
            kind, item = done.get()
            if kind == "end":
                working -= 1
            elif kind == "error":
                failure.append(item)  # type: ignore[arg-type]
            elif kind == "progress":
                on_progress(item)  # type: ignore[arg-type]
            else:
                yield item  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failure:
        raise failure[0]


class _Stopped(BaseException):
    """Another engine failed, or the run was interrupted: abandon the group."""
