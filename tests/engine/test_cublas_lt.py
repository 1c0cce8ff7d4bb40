"""Products with a shortcut by cuBLASLt: what the library is asked for, and what it is not."""

# ruff: noqa: N802, the library's own names

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from sween.engine import cublas_lt, cudnn_convolution
from sween.engine.cublas_lt import ALIGNMENT, CublasLtError, matmul
from sween.engine.cudnn_convolution import convolution_relu
from sween.errors import is_out_of_memory
from tests.engine.cudnn import Emulated, emulate

CPU = torch.device("cpu")
matmul_relu = functools.partial(matmul, relu=True)


class Library:
    """cuBLASLt as its header describes it, on the CPU's memory; all calls return a status."""

    def __init__(self) -> None:
        self.status = 0
        self.proposals = 1
        self.used = list[int]()
        self.differs = set[int]()
        self.fails = set[int]()
        self.calls = 0
        self.capturing = True
        self.times = dict[int, float]()
        self.made: dict[int, dict[Any, Any]] = {}
        self.numbers = itertools.count(1)

    def milliseconds(self, call: Callable[[], torch.Tensor]) -> float:
        call()
        return self.times.get(self.used[-1], 9.0)

    def _make(self, where: Any, content: dict[Any, Any]) -> int:
        number = next(self.numbers)
        self.made[number] = content
        where._obj.value = number
        return self.status

    def cublasLtCreate(self, where: Any) -> int:
        return self._make(where, {})

    def cublasLtMatmulDescCreate(self, where: Any, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0), "sums in float32"
        return self._make(where, {})

    def cublasLtMatmulDescSetAttribute(self, of: Any, name: int, value: Any, size: Any) -> int:
        assert size.value == ctypes.sizeof(value._obj)
        self.made[of.value][name] = value._obj.value
        return self.status

    def cublasLtMatrixLayoutCreate(
        self, where: Any, kind: int, rows: Any, columns: Any, leading: Any
    ) -> int:
        shape = {"kind": kind, "rows": rows.value, "columns": columns.value}
        return self._make(where, {**shape, "leading": leading.value})

    def cublasLtMatmulPreferenceCreate(self, where: Any) -> int:
        return self._make(where, {})

    def cublasLtMatmulPreferenceSetAttribute(
        self, of: Any, name: int, value: Any, size: Any
    ) -> int:
        self.made[of.value][name] = value._obj.value
        return self.status

    def cublasLtMatmulPreferenceDestroy(self, of: Any) -> int:
        del self.made[of.value]
        return 0

    def cublasLtMatmulAlgoGetHeuristic(
        self, _handle: Any, _of: Any, a: Any, b: Any, c: Any, d: Any, preference: Any, most: int,
        results: Any, found: Any,
    ) -> int:  # fmt: skip
        assert self.made[preference.value] == {1: cublas_lt.WORKSPACE_BYTES}
        found._obj.value = min(most, self.proposals)
        for number in range(found._obj.value):
            results[number].workspace = 64
            results[number].algorithm[0] = 700 + number
        return self.status

    def cublasLtMatmul(
        self, _handle: Any, of: Any, alpha: Any, a: Any, a_like: Any, b: Any, b_like: Any,
        beta: Any, c: Any, c_like: Any, d: Any, d_like: Any, algorithm: Any, workspace: Any,
        workspace_size: Any, stream: Any,
    ) -> int:  # fmt: skip
        if self.status:
            return self.status
        self.calls += 1
        description = self.made[of.value]
        assert description[3] == 1, "A transposed"
        assert description[7] in (4, 6), "bias, or relu and bias"
        number = algorithm._obj.algorithm[0] - 700
        if number in self.fails:
            return 13
        self.used.append(number)
        assert workspace_size.value == 64
        assert workspace.value
        left, right = self._matrix(a, a_like), self._matrix(b, b_like)
        total = alpha._obj.value * left.T @ right
        if beta._obj.value:
            total += beta._obj.value * self._matrix(c, c_like)
        kind = self.made[a_like.value]["kind"]
        bias = self._matrix(
            ctypes.c_void_p(description[8]),
            None,
            {"kind": kind, "rows": len(total), "columns": 1, "leading": len(total)},
        )
        out = self._view(d, self.made[d_like.value])
        least = 0 if description[7] == 6 else -np.inf
        out[...] = np.maximum(total + bias, least).astype(np.float16)
        if number in self.differs:
            out[0, 0] += 1
        return 0

    def _view(self, address: Any, like: dict[str, int]) -> np.ndarray[Any, Any]:
        assert like["kind"] == 2, "float16"
        assert like["leading"] == like["rows"]
        numbers = (ctypes.c_uint16 * (like["rows"] * like["columns"])).from_address(address.value)
        flat: np.ndarray[Any, Any] = np.ctypeslib.as_array(numbers).view(np.float16)
        return flat.reshape(like["columns"], like["rows"]).T  # column by column

    def _matrix(
        self, address: Any, of: Any, like: dict[str, int] | None = None
    ) -> np.ndarray[Any, Any]:
        return self._view(address, like or self.made[of.value]).astype(np.float32)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    found = Library()
    monkeypatch.setattr(cublas_lt, "library", lambda: found)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: _Stream())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    monkeypatch.setattr(cublas_lt, "_milliseconds", found.milliseconds)
    for kept in (cublas_lt._handle, cublas_lt.matmul_of):
        kept.cache_clear()
    yield found
    for kept in (cublas_lt._handle, cublas_lt.matmul_of):
        kept.cache_clear()


class _Stream:
    cuda_stream = 5


def _aligned(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Random numbers at an address such as torch's allocator for GPUs gives."""
    count = torch.Size(shape).numel()
    room = torch.zeros(count + ALIGNMENT, dtype=dtype)
    start = (-room.data_ptr() % ALIGNMENT) // room.element_size()
    return room[start : start + count].normal_().view(shape)


@pytest.mark.parametrize("with_shortcut", [True, False])
def test_the_library_is_asked_for_the_product(library: Library, with_shortcut: bool) -> None:
    x, weight, bias, shortcut = _aligned(7, 3), _aligned(5, 3), _aligned(5), _aligned(7, 5)
    for _ in range(2):
        out = matmul_relu(x, weight, bias, shortcut if with_shortcut else None)
        wanted = functional.linear(x.float(), weight.float(), bias.float())
        wanted = functional.relu(wanted + shortcut.float() if with_shortcut else wanted)
        torch.testing.assert_close(out.float(), wanted, rtol=2e-3, atol=2e-3)
        bias = _aligned(5)  # which another layer of the same shape has
    assert library.calls == 2
    layouts = [own for own in library.made.values() if "rows" in own]
    assert len(layouts) == 3, "a shape is described once"


def test_the_fastest_kernel_that_gives_the_same_bits_is_used(library: Library) -> None:
    x, weight, bias, shortcut = _aligned(7, 3), _aligned(5, 3), _aligned(5), _aligned(7, 5)
    library.proposals, library.times = 5, {0: 5.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    library.differs, library.fails = {1}, {2}
    wanted = matmul_relu(x, weight, bias, shortcut)
    assert set(library.used) == {0}, "nothing is timed while a CUDA graph is captured"
    library.capturing = False
    assert torch.equal(matmul_relu(x, weight, bias, shortcut), wanted)
    assert {*library.used} == {0, 1, 3, 4}
    for _ in range(2):
        library.used.clear()
        assert torch.equal(matmul_relu(x, weight, bias, shortcut), wanted)
        assert library.used == [3], "chosen once"
    library.used.clear()
    matmul_relu(x, weight, bias, None)
    assert 0 in library.used, "without a shortcut anew"


def test_what_the_library_cannot_compute_is_an_error(library: Library) -> None:
    x, weight, bias = _aligned(7, 3), _aligned(5, 3), _aligned(5)
    with pytest.raises(CublasLtError, match="not aligned"):
        matmul_relu(_aligned(8, 3)[1:], weight, bias, None)
    with pytest.raises(CublasLtError, match="not contiguous"):
        matmul_relu(_aligned(3, 7).t(), weight, bias, None)
    with pytest.raises(CublasLtError, match=r"torch\.float32"):
        matmul_relu(x, weight, bias, _aligned(7, 5, dtype=torch.float32))
    library.proposals = 0
    with pytest.raises(CublasLtError, match="no kernel"):
        matmul_relu(x, weight, bias, None)
    library.proposals, library.status = 1, 15
    with pytest.raises(CublasLtError, match="status 15"):
        matmul_relu(x, weight, bias, None)
    library.status = 3
    with pytest.raises(CublasLtError, match="ALLOC_FAILED") as caught:
        matmul_relu(x, weight, bias, None)
    assert is_out_of_memory(caught.value)
    assert library.calls == 0


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas_lt, "library", lambda: None)
    cublas_lt._handle.cache_clear()
    with pytest.raises(CublasLtError, match="no cuBLASLt"):
        matmul_relu(_aligned(7, 3), _aligned(5, 3), _aligned(5), None)


def _images(channels: int, size: int = 4) -> torch.Tensor:
    pixels = _aligned(2, size, size, channels)
    return pixels.permute(0, 3, 1, 2)


def _convolve(x: torch.Tensor, shortcut: torch.Tensor | None, weight: torch.Tensor,
              bias: torch.Tensor | None, stride: int = 1) -> torch.Tensor:  # fmt: skip
    padding = weight.shape[-1] // 2
    geometry = [stride] * 2, [padding] * 2, [1] * 2, 1
    out: torch.Tensor = convolution_relu(x, shortcut, weight, bias, *geometry)
    wanted = functional.conv2d(
        x.float(), weight.float(), None if bias is None else bias.float(), stride, padding
    )
    wanted = functional.relu(wanted if shortcut is None else wanted + shortcut.float())
    torch.testing.assert_close(out.float(), wanted, rtol=5e-3, atol=5e-3)
    return out


@pytest.mark.parametrize("shortcut", [_images(16), None], ids=["shortcut", "none"])
def test_1x1_convolutions_are_such_products(
    shortcut: torch.Tensor | None, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = emulate(monkeypatch)
    out = _convolve(_images(8), shortcut, _aligned(16, 8, 1, 1), _aligned(16))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert (library.calls, cudnn.with_shortcut, cudnn.plain) == (1, 0, 0)


@pytest.mark.parametrize(
    ("shortcut", "weight", "bias", "stride"),
    [
        (None, (16, 8, 1, 1), None, 1),
        (_images(16), (16, 8, 1, 1), None, 1),
        (_images(16), (16, 8, 3, 3), 16, 1),
        (_images(16, 2), (16, 8, 1, 1), 16, 2),
        (_aligned(2, 16, 4, 4), (16, 8, 1, 1), 16, 1),
    ],
    ids=["no bias nor shortcut", "no bias", "3x3", "strided", "channels first"],
)
def test_other_convolutions_are_left_to_cudnn(
    shortcut: torch.Tensor | None,
    weight: tuple[int, ...],
    bias: int | None,
    stride: int,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cudnn = emulate(monkeypatch)
    own = None if bias is None else _aligned(bias)
    _convolve(_images(8), shortcut, _aligned(*weight), own, stride)
    assert library.calls == 0
    assert cudnn.with_shortcut + cudnn.plain == 1


@pytest.mark.parametrize("fault", ["no library", "no kernel", "a failure"])
def test_cudnn_computes_what_the_library_cannot(
    fault: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = emulate(monkeypatch)
    library.proposals, library.status = int(fault != "no kernel"), 7 * (fault == "a failure")
    if fault == "no library":
        monkeypatch.setattr(cublas_lt, "library", lambda: None)
    for calls in (1, 2):
        _convolve(_images(8), _images(16), _aligned(16, 8, 1, 1), _aligned(16))
        assert cudnn.with_shortcut == calls
    assert len(cudnn_convolution._UNSUPPORTED) == 1, "it is asked once"


def test_misaligned_tensors_are_left_to_cudnn_each_time(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = emulate(monkeypatch)
    bias = _aligned(17)[1:]
    _convolve(_images(8), _images(16), _aligned(16, 8, 1, 1), bias)
    assert (library.calls, cudnn.with_shortcut) == (0, 1)
    assert not cudnn_convolution._UNSUPPORTED
    _convolve(_images(8), _images(16), _aligned(16, 8, 1, 1), _aligned(16))
    assert library.calls == 1


def test_neither_library_can(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn: Emulated = emulate(monkeypatch, RuntimeError("no engine"))
    library.proposals = 0
    _convolve(_images(8), _images(16), _aligned(16, 8, 1, 1), _aligned(16))
    assert cudnn.with_shortcut == 1
    assert len(cudnn_convolution._UNSUPPORTED) == 2
