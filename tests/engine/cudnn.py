"""cuDNN's fused convolutions, emulated on a CPU: what they compute and what they refuse."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from sween.engine import cudnn_convolution


class Emulated:
    """Stands for cuDNN; counts the calls, or fails as a missing kernel does."""

    def __init__(self, error: Exception | None = None) -> None:
        self.plain = self.with_shortcut = 0
        self.error = error

    def relu(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *geometry: Any
    ) -> torch.Tensor:
        self.plain += 1
        return self._compute(x, weight, None, bias, geometry)

    def add_relu(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        z: torch.Tensor,
        alpha: float,
        bias: torch.Tensor | None,
        *geometry: Any,
    ) -> torch.Tensor:
        assert alpha == 1
        self.with_shortcut += 1
        return self._compute(x, weight, z, bias, geometry)

    def _compute(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        z: torch.Tensor | None,
        bias: torch.Tensor | None,
        geometry: Sequence[Any],
    ) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        stride, padding, dilation, groups = geometry
        assert x.dtype == weight.dtype
        with torch.autocast("cpu", enabled=False):
            out = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
        if z is None:
            return functional.relu(out)
        assert (z.shape, z.dtype) == (out.shape, out.dtype), "read past its end"
        return functional.relu(out + z)


def emulate(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> Emulated:
    """Let fused convolutions run as on a GPU."""
    emulated = Emulated(error)
    monkeypatch.setattr(cudnn_convolution, "has_cudnn", lambda x: x.ndim == 4)
    monkeypatch.setattr(cudnn_convolution, "_UNSUPPORTED", set())
    monkeypatch.setattr(torch, "cudnn_convolution_relu", emulated.relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", emulated.add_relu)
    return emulated
