"""The rate of the device's matrix products, to which that of a network is compared."""

import contextlib
import functools
import time
from collections.abc import Iterator

import torch

SIZES = {"cuda": (8192,), "cpu": (512, 1024)}
"""Rows and columns of the products; the fastest size counts."""

SECONDS = 0.1
"""Duration of a measurement; the best of `ROUNDS` counts, since others may use the device too."""

ROUNDS = 3


@functools.cache
def matrix_rate(device: torch.device, arithmetic: str) -> float:
    """Floating-point operations per second of a product of large matrices.

    Args:
        device: where it is computed.
        arithmetic: as in records: float32, tf32, float16, bfloat16 or int8, and how it was
            compiled. A CPU computes int8 in float32.
    """
    name = arithmetic.partition(",")[0].partition("+")[0].replace("tf32", "float32")
    dtype = torch.float32 if (name, device.type) == ("int8", "cpu") else getattr(torch, name)
    with torch.inference_mode(), _tf32(arithmetic.startswith("tf32")):
        return max(
            _rate(torch.randn(size, size, device=device).to(dtype))
            for size in SIZES[device.type]
            for _ in range(ROUNDS)
        )


def _rate(matrix: torch.Tensor) -> float:
    def multiply() -> None:
        if matrix.dtype == torch.int8:
            torch._int_mm(matrix, matrix.t())  # the layout that cuBLAS has fast kernels for
        else:
            matrix @ matrix
        if matrix.device.type == "cuda":
            torch.cuda.synchronize(matrix.device)  # microseconds, of a product's milliseconds

    multiply()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        multiply()
        done += 1
    return done * 2 * len(matrix) ** 3 / (time.perf_counter() - began)


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    known = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = known
