"""The settings of a preparation, and the arithmetic that records name."""

import dataclasses
from typing import Self

import torch

from sween.engine.differences import SAME_OUTPUT
from sween.errors import UnknownName
from sween.precision import WAYS

PRECISIONS = ("auto", "float32", "float16", "bfloat16", "int8")

COMPILE_MODES = ("fast", "max")
"""How members are compiled: `fast` starts in seconds, by cuDNN's fused convolutions, what stands
between them compiled, and no search; `max` lets torch's compiler search for the fastest kernels of
all layers, for minutes."""

DEFAULT_COMPILE_MODE = "fast"
"""On a GPU; results/certification-speed has its throughput."""

_CHANGE_WITH_PLACE = {
    "float32": SAME_OUTPUT,
    "tf32": 2.5e-3,
    "float16": 2.5e-3,
    "bfloat16": 2e-2,
    "int8": 0.0,
}
"""How far an output may change with the place of its row in the batch, in units of `class_scales`:
about twice the most that was seen of float16 on an H200 (0.0012); bfloat16 has three bits less.
Sums of integers are exact."""


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How members are prepared.

    Attributes:
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
            int8 is for CIFAR ResNets whose activation ranges were measured (`sween quantize`).
        compile: whether to compile, by default only on a GPU; or how, see `COMPILE_MODES`. True
            is `max` on a CPU, where there is nothing that `fast` could do. Makes no difference to
            int8 on a GPU, and none to its outputs on a CPU.

    Example:
        >>> import torch
        >>> from sween.engine import Preparation
        >>> Preparation().describe(torch.device("cpu"))
        'float32'
        >>> Preparation("bfloat16").describe(torch.device("cuda"), "compiled")
        'bfloat16+compiled'
    """

    precision: str = "auto"
    compile: bool | str | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UnknownName("precision", self.precision, PRECISIONS)
        if self.compile not in (None, True, False, *COMPILE_MODES):
            raise UnknownName("way to compile", str(self.compile), COMPILE_MODES)

    @classmethod
    def recorded(cls, arithmetic: str) -> Self:
        """The preparation that gave the arithmetic a record names; see `describe`."""
        name = arithmetic.partition(",")[0].partition("+")[0]
        compile: bool | str = "+" in arithmetic
        if "+cudnn" in arithmetic:
            compile = "fast"
        elif "+compiled" in arithmetic:
            compile = "max"
        return cls(name.replace("tf32", "float32"), compile)

    def dtype(self, device: torch.device) -> torch.dtype:
        name = self.precision
        if name == "auto":
            name = "float16" if device.type == "cuda" else "float32"
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def compile_mode(self, device: torch.device) -> str | None:
        """One of `COMPILE_MODES`, or None: not compiled."""
        if device.type != "cuda":
            return "max" if self.compile in (True, "max") else None
        asked = None if self.precision == "int8" else self.compile
        if asked is None or asked is True:
            return DEFAULT_COMPILE_MODE
        return asked or None

    def change_with_place(self, device: torch.device) -> float:
        """How far rounding may change an output with the place of its row in the batch."""
        return _CHANGE_WITH_PLACE[self.describe(device)]

    def describe(self, device: torch.device, how: str = "") -> str:
        """The arithmetic as one string for records; GPUs may round float32 products to TF32.

        Args:
            device: where the votes are computed.
            how: a name in `WAYS`, or empty: each rounds at different places.
        """
        assert not how or how in WAYS, how
        name = str(self.dtype(device)).removeprefix("torch.")
        loose = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        if name == "float32" and device.type == "cuda" and loose:
            name = "tf32"
        return f"{name}+{how}" if how else name
