"""Captures work on a GPU as CUDA graphs that share no memory with each other."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch


@contextlib.contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph,
    stream: torch.cuda.Stream,
    *,
    error_mode: Literal["global", "thread_local"] = "global",
) -> Iterator[None]:
    """Capture what is done within, with workspaces of cuBLAS that belong to this graph alone.

    torch keeps these workspaces by stream (pytorch/pytorch#193402): graphs captured on one stream
    would write into the same one wherever they are replayed, so that two graphs replayed at once
    corrupt each other's matrix products; and the first graph that is destroyed takes it from the
    others in some versions. If they are dropped before, the graph allocates one from its own pool,
    which lives as long as it does; if they are dropped after, nothing else is given that one.

    Args:
        graph: to capture into, with a pool of its own.
        stream: to capture on, of the device that does the work.
        error_mode: of torch; "thread_local" lets other threads go on.

    Example:
        >>> import torch
        >>> from sween.cuda import capturing
        >>> if torch.cuda.is_available():
        ...     graph, numbers = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
        ...     with capturing(graph, torch.cuda.Stream()):
        ...         numbers.add_(1)
        ...     graph.replay()
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=error_mode):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
