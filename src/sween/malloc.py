"""Keep the C library from giving memory back between two forward passes on a CPU.

glibc returns the free end of its heap to the kernel as soon as it is twice as large as the largest
buffer it has seen, and a forward pass frees more than that: the next one then faults every page in
again. Whether it does depends on what else lies on the heap, so that two processes with the same
work may differ in speed.
"""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of malloc.h
_KEPT_BYTES, _LARGEST_ON_HEAP = 2**30, 2**25  # the latter is the largest that glibc accepts


def keep_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory, for buffers of up to 32 MiB.

    For processes that sween starts or whose command line it is. Without effect where the C library
    is not glibc, or where the environment has settings for its malloc.
    """
    chosen = {"GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}
    if sys.platform != "linux" or chosen & os.environ.keys():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
