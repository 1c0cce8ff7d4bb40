"""Compiling and launching the kernels on a GPU, by the compiler that comes with torch."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import cpp_extension

from sween.kernels.cifar_resnet import Argument
from sween.kernels.source import read_source

CAPABILITY = (8, 0)
"""The oldest GPUs that have the instructions."""

THREADS = {1: 256, 2: 128, 3: 128}
SHARED_BYTES = {1: 2 * 2 * 34 * 34 * 16, 2: 2 * 4 * 18 * 18 * 16, 3: 2 * 2 * 8 * 10 * 10 * 16}
"""Of a block of each stage's kernel: activations of its images, twice, borders included."""

_COMPILING = threading.Lock()


def supports(device: torch.device) -> bool:
    """Whether a device can run the kernels: NVIDIA's from CAPABILITY on, with room for a block."""
    if device.type != "cuda" or torch.version.hip or not hasattr(torch.cuda, "_compile_kernel"):
        return False
    properties = torch.cuda.get_device_properties(device)
    room = getattr(properties, "shared_memory_per_block_optin", 0)
    return (properties.major, properties.minor) >= CAPABILITY and room >= max(SHARED_BYTES.values())


def launcher(device: torch.device) -> "Launcher":
    """Compiles the kernels for a device, at the first call of a process."""
    with _COMPILING, torch.cuda.device(device):
        return Launcher({stage: _kernel(stage, torch.cuda.current_device()) for stage in THREADS})


class Launcher:
    """Runs the kernels on the current stream of the arguments' device."""

    def __init__(self, kernels: dict[int, Any]) -> None:
        self._kernels = kernels

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._kernels[stage](
                grid=(blocks, 1, 1),
                block=(THREADS[stage], 1, 1),
                args=list(arguments),
                shared_mem=SHARED_BYTES[stage],
            )


@functools.cache
def _kernel(stage: int, device_index: int) -> Any:
    with _without_headers():
        kernel = torch.cuda._compile_kernel(
            read_source(), f"stage{stage}", nvcc_options=[f"-DSTAGE={stage}", "--std=c++17"]
        )
    kernel.set_shared_memory_config(SHARED_BYTES[stage])
    return kernel


@contextlib.contextmanager
def _without_headers() -> Iterator[None]:
    """torch wants to know where CUDA's headers are; the source includes none."""
    known = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = known or "/usr/local/cuda"
    try:
        yield
    finally:
        cpp_extension.CUDA_HOME = known
