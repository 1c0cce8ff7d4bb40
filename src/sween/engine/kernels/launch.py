"""Compiles the kernels with the compiler that ships with torch, and launches them on a GPU."""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from sween.cuda import Argument, can_compile, compile_kernel
from sween.cuda.compiler import COMPILING
from sween.engine.kernels.noise import THREADS
from sween.engine.kernels.shape import Shape
from sween.engine.kernels.source import NOISE, read_source

STAGES = (1, 2, 3)


def supports(device: torch.device, shape: Shape | None = None) -> bool:
    """Whether a device can run the kernels of a shape."""
    return can_compile(device, max((shape or Shape()).shared_bytes(stage) for stage in STAGES))


def launcher(device: torch.device, shape: Shape | None = None) -> "Launcher":
    """The kernels compiled for a device; only the first call of a process compiles."""
    chosen = shape or Shape()
    with COMPILING, torch.cuda.device(device):
        index = torch.cuda.current_device()
        return Launcher({stage: _kernel(stage, chosen, index) for stage in STAGES}, chosen)


class Launcher:
    """Runs the kernels on the current stream of the arguments' device."""

    def __init__(self, kernels: dict[int, Any], shape: Shape) -> None:
        self._kernels, self.shape = kernels, shape

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._kernels[stage](
                grid=(blocks, 1, 1),
                block=(self.shape.threads(stage), 1, 1),
                args=list(arguments),
                shared_mem=self.shape.shared_bytes(stage),
            )


class NoiseLauncher:
    """Runs the kernels of noise.cu on the current stream of the arguments' device."""

    def __call__(self, kernel: str, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            with COMPILING:
                run = _noise_kernel(kernel, torch.cuda.current_device())
            run(grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=list(arguments))


@functools.cache
def _kernel(stage: int, shape: Shape, device_index: int) -> Any:
    kernel = compile_kernel(read_source(shape.files), f"stage{stage}", shape.definitions(stage))
    kernel.set_shared_memory_config(shape.shared_bytes(stage))
    return kernel


@functools.cache
def _noise_kernel(name: str, device_index: int) -> Any:
    return compile_kernel(read_source(NOISE), name)
