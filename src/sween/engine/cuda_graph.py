"""A module compiled for batches of one shape, and on a GPU recorded as a CUDA graph."""

from collections.abc import Callable

import torch
from torch import nn

from sween.engine.tracing import TRACING

Forward = Callable[[torch.Tensor], torch.Tensor]

COMPILE_MODE = "max-autotune-no-cudagraphs"
"""The slowest to compile and the fastest to run; the recording is our own."""

MOST_GRAPHS = 4096
"""Members that may be compiled in one process."""

WARMUP_PASSES = 3
"""Passes before a recording, in which compilation and workspaces settle."""


@torch.inference_mode()
def compiled(module: nn.Module, images: torch.Tensor) -> Forward:
    """The module's forward pass, for batches of the shape of `images`."""
    run = _Unlimited(torch.compile(module, fullgraph=True, dynamic=False, mode=COMPILE_MODE))
    run(images)
    return Recorded(run, images) if images.device.type == "cuda" else run


class _Unlimited:
    """A compiled module that may be compiled again as often as it needs.

    Every member is a graph of its own behind the same code, which counts as a recompilation; so
    does a call with other kinds of tensors, those of inference mode for instance.
    """

    def __init__(self, run: Forward) -> None:
        self._run = run

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with (
            TRACING,
            torch._dynamo.config.patch(
                recompile_limit=MOST_GRAPHS, accumulated_recompile_limit=MOST_GRAPHS
            ),
        ):
            return self._run(images)


class Recorded:
    """A function of tensors recorded once as a CUDA graph and replayed: the host only says go.

    Args:
        run: the function; what it computes with must not move.
        inputs: of the shapes that it will be called with.
    """

    def __init__(self, run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
        self.run = run  # the graph reads its weights where they are: they must stay alive
        self.inputs = [own.clone() for own in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(inputs[0].device):  # of several GPUs, the one that the inputs are on
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUP_PASSES):
                    run(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            # Thread-local: other engines may be at work on other GPUs meanwhile.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outputs = run(*self.inputs)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        ours = [tuple(own.shape) for own in self.inputs]
        theirs = [tuple(own.shape) for own in inputs]
        if ours != theirs:  # copy_ would broadcast
            raise ValueError(f"recorded for {ours}, got {theirs}")
        # What was recorded in inference mode can be written in that mode only.
        inference = self.inputs[0].is_inference()
        with (
            torch.inference_mode(inference),
            torch.no_grad(),
            torch.cuda.device(self.inputs[0].device),
        ):
            for own, given in zip(self.inputs, inputs, strict=True):
                own.copy_(given)
            self.graph.replay()
            return self.outputs.clone()
