"""Compiles the kernels with the compiler that ships with torch, and launches them on a GPU."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sween.engine.kernels.cifar_resnet import Argument
from sween.engine.kernels.noise import THREADS
from sween.engine.kernels.shape import Shape
from sween.engine.kernels.source import NOISE, read_source

CAPABILITY = (8, 0)
"""The lowest compute capability with the instructions that the kernels use."""

STAGES = (1, 2, 3)

_COMPILING = threading.Lock()


def supports(device: torch.device, shape: Shape | None = None) -> bool:
    """Whether a device can run the kernels: NVIDIA, at least CAPABILITY, enough shared memory."""
    if device.type != "cuda" or torch.version.hip or not hasattr(torch.cuda, "_compile_kernel"):
        return False
    properties = torch.cuda.get_device_properties(device)
    room = int(getattr(properties, "shared_memory_per_block_optin", 0))
    needed = max((shape or Shape()).shared_bytes(stage) for stage in STAGES)
    return (properties.major, properties.minor) >= CAPABILITY and room >= needed


def launcher(device: torch.device, shape: Shape | None = None) -> "Launcher":
    """The kernels compiled for a device; only the first call of a process compiles."""
    chosen = shape or Shape()
    with _COMPILING, torch.cuda.device(device):
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
            with _COMPILING:
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


def compile_kernel(source: str, name: str, options: Sequence[str] = ()) -> Any:
    """Compile a CUDA C++ kernel without includes for the current device."""
    with _without_headers():
        return torch.cuda._compile_kernel(source, name, nvcc_options=[*options, "--std=c++17"])


@contextlib.contextmanager
def _without_headers() -> Iterator[None]:
    """Spare torch the search for CUDA's headers, of which the source includes none."""
    # Imported here: it needs setuptools, which a machine that only certifies may lack.
    from torch.utils import cpp_extension

    known = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = known or "/usr/local/cuda"
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = known
