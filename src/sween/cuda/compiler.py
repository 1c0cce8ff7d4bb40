"""Compiles kernels for the current GPU."""

import contextlib
import importlib.resources
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from sween.cuda.kernel_cache import KernelCode, kept_code

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

    Its code is kept on disk, see `kernel_cache`.

    Example:
        See `can_compile`.
    """
    wanted = [*options, "--std=c++17"]
    try:
        made_from = _made_from(source, name, wanted)
        return _load(kept_code(made_from, lambda: _code(source, name, wanted)))
    except Exception:  # of private functions of torch, or of the driver that loads the code
        with _without_headers():  # says what is wrong with the source, if it is that
            return torch.cuda._compile_kernel(source, name, nvcc_options=wanted)


def _made_from(source: str, name: str, options: Sequence[str]) -> dict[str, object]:
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "source": source,
        "name": name,
        "options": list(options),
        "capability": [device.major, device.minor],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _code(source: str, name: str, options: list[str]) -> KernelCode:
    from torch.cuda import _utils

    with _without_headers():
        code, entry = _utils._nvrtc_compile(source, name, nvcc_options=options)
    return KernelCode(entry, code)


def _load(known: KernelCode) -> Any:
    from torch.cuda import _utils

    kernels = _utils._cuda_load_module(known.code, [known.entry])
    assert isinstance(kernels, dict)
    return kernels[known.entry]


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
