"""Read images in background threads, ahead of whoever uses them, in bounded memory.

Threads, not processes: Pillow's decoders and file reads release Python's global lock, and a thread
needs no pickling, no shared memory and no second copy of a million file names.
"""

import concurrent.futures
from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")

CHUNK = 256
"""The most images that are read between two progress updates."""

_CHUNK_BYTES = 64 * 2**20


def chunks(first: int, count: int, image_bytes: int) -> list[range]:
    """The positions from `first` to `count`, in parts whose images take little memory."""
    together = max(1, min(CHUNK, _CHUNK_BYTES // image_bytes))
    return [range(k, min(k + together, count)) for k in range(first, count, together)]


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
