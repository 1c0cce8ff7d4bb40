"""relu(x @ weight.T + bias + shortcut) by one call of cuBLASLt, which torch has loaded.

torch's own functions reach cuBLASLt's epilogues only without a shortcut; the library adds one in
the same pass over the output.
"""

import ctypes
import functools
import threading
from typing import Any

import torch

LIBRARIES = ("libcublasLt.so.13", "libcublasLt.so.12")
"""Names under which torch's wheels bring it."""

TYPES = {torch.float16: 2, torch.bfloat16: 14}
"""Of the tensors, with the library's number of each."""

ALIGNMENT = 256
"""Of addresses, in bytes; the library's heuristics assume it, torch's allocator keeps it."""

WORKSPACE_BYTES = 32 * 2**20
"""The most memory that a product may use beside its tensors; what NVIDIA advises for Hopper."""

# Of cublasLt.h, cublas_api.h and library_types.h, the same since CUDA 11.
_COMPUTE_32F, _R_32F = 68, 0
_TRANSPOSE_A, _EPILOGUE, _BIAS_POINTER = 3, 7, 8
_TRANSPOSED, _RELU_AND_BIAS = 1, 6
_MAX_WORKSPACE = 1


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLtError(RuntimeError):
    """A call of cuBLASLt failed."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """cuBLASLt; None where torch did not bring it."""
    if not torch.version.cuda:
        return None
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _call(name: str, *arguments: Any) -> None:
    found = library()
    if found is None:
        raise CublasLtError("no cuBLASLt")
    status = getattr(found, name)(*arguments)
    if status:
        raise CublasLtError(f"{name} failed with status {status}")


@functools.cache
def _handle(device: torch.device) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _call("cublasLtCreate", ctypes.byref(handle))
    return handle


class Product:
    """A product of one shape; the library's first choice of a kernel, which is always the same.

    Args:
        rows: of x and of the output.
        columns: of the output.
        depth: columns of x.
        dtype: of all tensors; sums are in float32.
        device: where they are.
        rank: which of the library's proposals to use, the first by default.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        depth: int,
        dtype: torch.dtype,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        kind, self.device = TYPES[dtype], device
        self._lock = threading.Lock()  # of the description, which holds the address of the bias
        self.operation = ctypes.c_void_p()
        _call("cublasLtMatmulDescCreate", ctypes.byref(self.operation), _COMPUTE_32F, _R_32F)
        self._set(_TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
        self._set(_EPILOGUE, ctypes.c_int32(_RELU_AND_BIAS))
        # Column by column, as BLAS reads them, the matrices are transposed: out.T = weight @ x.T.
        self.weight = _layout(kind, depth, columns)
        self.x = _layout(kind, depth, rows)
        self.out = _layout(kind, columns, rows)
        self.choice = self._choose(rank)

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _call(
            "cublasLtMatmulDescSetAttribute", self.operation, attribute, ctypes.byref(value), size
        )

    def _choose(self, rank: int) -> _Heuristic:
        preference = ctypes.c_void_p()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        most = ctypes.c_size_t(WORKSPACE_BYTES)
        _call(
            "cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE,
            ctypes.byref(most), ctypes.c_size_t(ctypes.sizeof(most)),
        )  # fmt: skip
        # The proposals depend on how a bias is aligned, so there must be one.
        self._set(_BIAS_POINTER, ctypes.c_void_p(ALIGNMENT))
        results = (_Heuristic * (rank + 1))()
        found = ctypes.c_int()
        try:
            _call(
                "cublasLtMatmulAlgoGetHeuristic", _handle(self.device), self.operation,
                self.weight, self.x, self.out, self.out, preference, rank + 1, results,
                ctypes.byref(found),
            )  # fmt: skip
        finally:
            _call("cublasLtMatmulPreferenceDestroy", preference)
        if found.value <= rank or results[rank].state:
            raise CublasLtError("no kernel for this product")
        return results[rank]

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shortcut: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `product_relu`."""
        out = x.new_empty(len(x), len(weight))
        workspace = torch.empty(self.choice.workspace, dtype=torch.uint8, device=x.device)
        one = ctypes.c_float(1.0)
        more = ctypes.c_float(0.0 if shortcut is None else 1.0)
        added = out if shortcut is None else shortcut
        with torch.cuda.device(self.device), self._lock:
            self._set(_BIAS_POINTER, _address(bias))
            _call(
                "cublasLtMatmul", _handle(self.device), self.operation, ctypes.byref(one),
                _address(weight), self.weight, _address(x), self.x, ctypes.byref(more),
                _address(added), self.out, _address(out), self.out,
                ctypes.byref(self.choice, _Heuristic.algorithm.offset), _address(workspace),
                ctypes.c_size_t(self.choice.workspace),
                ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
            )  # fmt: skip
        return out


def _layout(kind: int, rows: int, columns: int) -> ctypes.c_void_p:
    """Of a matrix whose columns follow one another."""
    made = ctypes.c_void_p()
    _call(
        "cublasLtMatrixLayoutCreate", ctypes.byref(made), kind, ctypes.c_uint64(rows),
        ctypes.c_uint64(columns), ctypes.c_int64(rows),
    )  # fmt: skip
    return made


def _address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@functools.cache
def product_of(
    rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device, rank: int = 0
) -> Product:
    """The product of this shape, made once."""
    return Product(rows, columns, depth, dtype, device, rank)


def product_relu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shortcut: torch.Tensor | None
) -> torch.Tensor:
    """relu(x @ weight.T + bias + shortcut), in float16 or bfloat16.

    Args:
        x: (R, K).
        weight: (M, K).
        bias: (M,).
        shortcut: (R, M), of the same type as the others.

    Returns:
        (R, M), which does not depend on when or how often it is called: the kernel is the one that
        the library's heuristics propose for the shape.

    Raises:
        CublasLtError: the library is not there, or cannot compute it.
    """
    given = [x, weight, bias, *([] if shortcut is None else [shortcut])]
    if any(own.dtype not in TYPES or own.dtype != x.dtype for own in given):
        raise CublasLtError(f"tensors of type {', '.join(str(own.dtype) for own in given)}")
    if not all(own.is_contiguous() and own.data_ptr() % ALIGNMENT == 0 for own in given):
        raise CublasLtError("tensors that are not contiguous, or not aligned")
    product = product_of(len(x), len(weight), x.shape[1], x.dtype, x.device)
    return product(x, weight, bias, shortcut)
