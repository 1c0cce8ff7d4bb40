"""Compiles kernels for the current GPU."""

import contextlib
import importlib.resources
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Argument = torch.Tensor | int
"""Of a kernel: a pointer or a number."""

CAPABILITY = (8, 0)
"""The lowest compute capability with the instructions that the kernels use."""

COMPILING = threading.RLock()
"""Held while a kernel is compiled: torch's compiler is not made for several threads."""


def can_compile(device: torch.device, shared_bytes: int = 0) -> bool:
    """Whether a device can run kernels: NVIDIA, at least CAPABILITY, enough shared memory.

    Example:
        >>> import torch
        >>> from sween.cuda import can_compile, compile_kernel, read_source
        >>> if can_compile(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        ...     source = read_source("sween.training", ["convolution.cu", "narrow_convolution.cu"])
        ...     kernel = compile_kernel(source, "convolution", ["-DBRAIN", "-DFORWARD"])
        >>> can_compile(torch.device("cpu"))
        False
    """
    if device.type != "cuda" or torch.version.hip or not hasattr(torch.cuda, "_compile_kernel"):
        return False
    properties = torch.cuda.get_device_properties(device)
    room = int(getattr(properties, "shared_memory_per_block_optin", 0))
    return (properties.major, properties.minor) >= CAPABILITY and room >= shared_bytes


def read_source(package: str, files: Sequence[str]) -> str:
    """CUDA C++ without includes: files of a package; convolution.cu is this one's.

    Example:
        See `can_compile`.
    """
    texts = []
    for name in files:
        folder = importlib.resources.files("sween.cuda" if name == "convolution.cu" else package)
        texts.append(folder.joinpath(name).read_text(encoding="utf-8"))
    return "\n".join(texts)


def compile_kernel(source: str, name: str, options: Sequence[str] = ()) -> Any:
    """Compile a CUDA C++ kernel without includes for the current device.

    Example:
        See `can_compile`.
    """
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
