"""Read images in background threads, ahead of whoever uses them, in bounded memory.

Threads, not processes: Pillow's decoders and file reads release Python's global lock, and a thread
needs no pickling, no shared memory and no second copy of a million file names.
"""

import concurrent.futures
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")

MOST_THREADS = 32


def decoding_threads() -> int:
    """How many images to decode at once: one for each core that this process may use."""
    return min(len(os.sched_getaffinity(0)), MOST_THREADS)


def read_ahead(
    read: Callable[[Key], Result], keys: Iterable[Key], *, ahead: int = 2, threads: int = 2
) -> Generator[Result, None, None]:
    """`read(key)` for each key, in order; raises what `read` raises.

    At most `ahead` results wait while the caller uses another, so that memory stays bounded. Close
    the generator to stop early.

    Args:
        read: called in background threads.
        keys: consumed as results are used.
        ahead: the most results that are being read or waiting.
        threads: calls of `read` at a time.
    """
    coming = iter(keys)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        pending = deque(pool.submit(read, key) for key in islice(coming, ahead))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(read, key) for key in islice(coming, 1))
            yield result
            del result  # not held while the next one is awaited
    finally:
        pool.shutdown(cancel_futures=True)
