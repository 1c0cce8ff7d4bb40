"""Compiles a module for batches of one shape and, on a GPU, captures it as a CUDA graph."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from sween.cuda import capturing
from sween.engine.compile_cache import compiling
from sween.engine.tracing import TRACING

Forward = Callable[[torch.Tensor], torch.Tensor]

SEARCH = "max-autotune-no-cudagraphs"
"""The slowest to compile and the fastest to run; CUDA graphs are captured by `CudaGraph` below."""

MAX_GRAPHS = 4096
"""The most members that can be compiled in one process."""

WARMUP_PASSES = 1
"""Passes of a whole batch before capture: compilation finishes and workspaces are allocated."""


@torch.inference_mode()
def compiled(module: nn.Module, images: torch.Tensor, *, search: bool = True) -> Forward:
    """The module's forward pass, compiled for batches of the shape of `images`.

    Args:
        module: in evaluation mode.
        images: a batch.
        search: whether the compiler tries many kernels for each operation, for minutes.
    """
    mode = SEARCH if search else None
    run = _Unlimited(torch.compile(module, fullgraph=True, dynamic=False, mode=mode))
    shape = " x ".join(map(str, images.shape))
    duration = "minutes" if search else "seconds"
    what = f"compiling a network for batches of {shape}, which can take {duration} at first"
    with compiling(what, images.device):
        run(images)
    return captured(run, images)


@torch.inference_mode()
def captured(run: Forward, images: torch.Tensor) -> Forward:
    """A forward pass captured as a CUDA graph; itself on a CPU."""
    return CudaGraph(run, images) if images.device.type == "cuda" else run


class _Unlimited:
    """A compiled module without torch's limit on recompilation.

    All members share the same code, so torch counts each member's graph as a recompilation; it also
    recompiles for other kinds of tensors, such as those created in inference mode.
    """

    def __init__(self, run: Forward) -> None:
        self._run = run

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        with (
            TRACING,
            torch._dynamo.config.patch(
                recompile_limit=MAX_GRAPHS, accumulated_recompile_limit=MAX_GRAPHS
            ),
        ):
            return self._run(images)


class CudaGraph:
    """A function of tensors captured once as a CUDA graph and replayed with a single launch.

    Args:
        run: the function; the tensors it uses, such as weights, must keep their addresses.
        inputs: example inputs, of the shapes that it will be called with.
    """

    def __init__(self, run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
        self.run = run  # keeps the weights alive, which the graph reads by address
        self.inputs = [own.clone() for own in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(inputs[0].device):  # with several GPUs, the one that has the inputs
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUP_PASSES):
                    run(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            # Thread-local: other engines may be working on other GPUs at the same time.
            with capturing(self.graph, stream, error_mode="thread_local"):
                self.outputs = run(*self.inputs)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        ours = [tuple(own.shape) for own in self.inputs]
        theirs = [tuple(own.shape) for own in inputs]
        if ours != theirs:  # copy_ would broadcast
            raise ValueError(f"captured for inputs of shape {ours}, got {theirs}")
        with self.writing():
            for own, given in zip(self.inputs, inputs, strict=True):
                own.copy_(given)
        return self.replay()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Within it the inputs, at their fixed addresses, can be written."""
        # Tensors captured in inference mode can only be written in that mode.
        with (
            torch.inference_mode(self.inputs[0].is_inference()),
            torch.no_grad(),
            torch.cuda.device(self.inputs[0].device),
        ):
            yield

    def replay(self) -> torch.Tensor:
        """The function of the inputs that were written last."""
        with self.writing():
            self.graph.replay()
            return self.outputs.clone()
