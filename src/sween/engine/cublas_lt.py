"""x @ weight.T + bias + shortcut, or its relu, by one call of cuBLASLt, which torch has loaded.

torch's own functions reach cuBLASLt's epilogues only without a shortcut; the library adds one in
the same pass over the output.
"""

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch

TYPES = {torch.float16: 2, torch.bfloat16: 14}
"""Of the tensors, with the library's number of each."""

ALIGNMENT = 256
"""Of addresses, in bytes; the library's heuristics assume it, torch's allocator keeps it."""

WORKSPACE_BYTES = 32 * 2**20
"""The most memory that a product may use beside its tensors; what NVIDIA advises for Hopper."""

PROPOSALS = 8
"""Kernels that the library is asked for. Its first one is up to half slower than the best where a
shortcut is added."""

TIMED_CALLS = 4

# Of cublasLt.h, cublas_api.h and library_types.h, the same since CUDA 11.
_COMPUTE_32F, _R_32F = 68, 0
_TRANSPOSE_A, _EPILOGUE, _BIAS_POINTER = 3, 7, 8
_TRANSPOSED, _BIAS, _RELU_AND_BIAS = 1, 4, 6
_MAX_WORKSPACE = 1
_ALLOC_FAILED = 3


class _Proposal(ctypes.Structure):
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
    try:  # another version of CUDA may be installed beside the one that torch brings
        return ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}")
    except OSError:
        return None


def _call(name: str, *arguments: Any) -> None:
    found = library()
    if found is None:
        raise CublasLtError("no cuBLASLt")
    status = getattr(found, name)(*arguments)
    if status:
        said = "CUBLAS_STATUS_ALLOC_FAILED" if status == _ALLOC_FAILED else f"status {status}"
        raise CublasLtError(f"{name} failed with {said}")


@functools.cache
def _handle(device: torch.device) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _call("cublasLtCreate", ctypes.byref(handle))
    return handle


class Matmul:
    """A product of one shape.

    Of the kernels that the library proposes, those whose outputs for random numbers are the same,
    bit for bit, as those of its first one are timed at the first call, and the fastest one stays.
    Kernels that agree in so many sums add them up in the same order: which of them is the fastest
    that day should not change an output. (A choice is kept for the process, whatever it is.)

    Args:
        rows: of x and of the output.
        columns: of the output.
        depth: columns of x.
        dtype: of all tensors; sums are in float32.
        device: where they are.
        relu: whether the output is that of a relu.

    Attributes:
        choice: the kernel.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        depth: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        relu: bool,
    ) -> None:
        kind, self.device = TYPES[dtype], device
        self._lock = threading.Lock()  # of the description, which holds the address of the bias
        self.operation = ctypes.c_void_p()
        _call("cublasLtMatmulDescCreate", ctypes.byref(self.operation), _COMPUTE_32F, _R_32F)
        self._set(_TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
        self._set(_EPILOGUE, ctypes.c_int32(_RELU_AND_BIAS if relu else _BIAS))
        # Column by column, as BLAS reads them, the matrices are transposed: out.T = weight @ x.T.
        self.weight = _layout(kind, depth, columns)
        self.x = _layout(kind, depth, rows)
        self.out = _layout(kind, columns, rows)
        self._proposals = self._ask()
        self.choice = self._proposals[0]

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _call(
            "cublasLtMatmulDescSetAttribute", self.operation, attribute, ctypes.byref(value), size
        )

    def _ask(self) -> list[_Proposal]:
        """The library's proposals, the best by its own estimate first."""
        preference = ctypes.c_void_p()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        most = ctypes.c_size_t(WORKSPACE_BYTES)
        # They depend on how a bias is aligned, so there must be one.
        self._set(_BIAS_POINTER, ctypes.c_void_p(ALIGNMENT))
        results, found = (_Proposal * PROPOSALS)(), ctypes.c_int()
        try:
            _call(
                "cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE,
                ctypes.byref(most), ctypes.c_size_t(ctypes.sizeof(most)),
            )  # fmt: skip
            _call(
                "cublasLtMatmulAlgoGetHeuristic", _handle(self.device), self.operation,
                self.weight, self.x, self.out, self.out, preference, PROPOSALS, results,
                ctypes.byref(found),
            )  # fmt: skip
        finally:
            _call("cublasLtMatmulPreferenceDestroy", preference)
        usable = [own for own in results[: found.value] if not own.state]
        if not usable:
            raise CublasLtError("no kernel for this product")
        return usable

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        shortcut: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `matmul`."""
        tensors = x, weight, bias, shortcut
        with torch.cuda.device(self.device), self._lock:
            # Nothing can be timed while a CUDA graph is captured.
            if self._proposals and not torch.cuda.is_current_stream_capturing():
                self.choice, self._proposals = self._fastest(*tensors), []
            return self._compute(self.choice, *tensors)

    def _fastest(self, *tensors: torch.Tensor | None) -> _Proposal:
        # Of numbers that make every sum differ by its order; a layer's own may be zeros.
        generator = torch.Generator(self.device).manual_seed(0)
        tensors = (
            *(own if own is None else torch.empty_like(own).normal_(generator=generator)
              for own in tensors[:3]),
            tensors[3],
        )  # fmt: skip
        wanted, found = self._compute(self._proposals[0], *tensors), dict[int, float]()
        for number, proposal in enumerate(self._proposals):
            try:
                if torch.equal(self._compute(proposal, *tensors), wanted):
                    found[number] = _milliseconds(
                        functools.partial(self._compute, proposal, *tensors)
                    )
            except CublasLtError:  # a proposal need not work
                continue
        return self._proposals[min(found, key=lambda number: found[number], default=0)]

    def _compute(self, proposal: _Proposal, *tensors: torch.Tensor | None) -> torch.Tensor:
        x, weight, bias, shortcut = tensors
        assert x is not None
        assert weight is not None
        assert bias is not None
        out = x.new_empty(len(x), len(weight))
        workspace = torch.empty(proposal.workspace, dtype=torch.uint8, device=x.device)
        one = ctypes.c_float(1.0)
        more = ctypes.c_float(0.0 if shortcut is None else 1.0)
        added = out if shortcut is None else shortcut
        self._set(_BIAS_POINTER, _address(bias))
        _call(
            "cublasLtMatmul", _handle(self.device), self.operation, ctypes.byref(one),
            _address(weight), self.weight, _address(x), self.x, ctypes.byref(more),
            _address(added), self.out, _address(out), self.out,
            ctypes.byref(proposal, _Proposal.algorithm.offset), _address(workspace),
            ctypes.c_size_t(proposal.workspace),
            ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )  # fmt: skip
        return out


def _milliseconds(call: Callable[[], torch.Tensor]) -> float:
    """Of the fastest of a few calls, on the GPU."""
    events: list[Any] = []
    for _ in range(TIMED_CALLS + 1):
        events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    events[-1].synchronize()
    return min(float(one.elapsed_time(other)) for one, other in itertools.pairwise(events))


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


def is_aligned(*tensors: torch.Tensor | None) -> bool:
    """Whether all tensors are there, at addresses that the library's kernels can read."""
    return all(own is not None and own.data_ptr() % ALIGNMENT == 0 for own in tensors)


@functools.cache
def matmul_of(
    rows: int,
    columns: int,
    depth: int,
    dtype: torch.dtype,
    device: torch.device,
    relu: bool,
    added: bool,
) -> Matmul:
    """The product of this shape, made once; with a shortcut another kernel may be the fastest."""
    return Matmul(rows, columns, depth, dtype, device, relu=relu)


def matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    shortcut: torch.Tensor | None,
    *,
    relu: bool,
) -> torch.Tensor:
    """x @ weight.T + bias + shortcut, or its relu, in float16 or bfloat16.

    Args:
        x: (R, K).
        weight: (M, K).
        bias: (M,).
        shortcut: (R, M), of the same type as the others.
        relu: whether to set what is negative to 0.

    Returns:
        (R, M); of the library's kernels one that gives the same bits as its first: see `Matmul`.

    Raises:
        CublasLtError: the library is not there, or cannot compute it.
    """
    given = [x, weight, bias, *([] if shortcut is None else [shortcut])]
    if any(own.dtype not in TYPES or own.dtype != x.dtype for own in given):
        raise CublasLtError(f"tensors of type {', '.join(str(own.dtype) for own in given)}")
    if shortcut is not None and shortcut.shape != (len(x), len(weight)):
        raise CublasLtError(f"a shortcut of shape {tuple(shortcut.shape)}")
    if not is_aligned(*given) or not all(own.is_contiguous() for own in given):
        raise CublasLtError("tensors that are not contiguous, or not aligned")
    shape = len(x), len(weight), x.shape[1]
    product = matmul_of(*shape, x.dtype, x.device, relu, shortcut is not None)
    return product(x, weight, bias, shortcut)
