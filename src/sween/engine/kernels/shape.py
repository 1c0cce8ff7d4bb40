"""How the kernels divide their work into thread blocks."""

import dataclasses
from typing import ClassVar

from sween.engine.kernels.source import (
    GRADIENTS,
    INTEGERS,
    NETWORKS,
    WIDE_INTEGERS,
    WIDE_NETWORKS,
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Compile-time parameters of the kernels; results do not depend on them.

    Attributes:
        rows: image rows that a warp of stage 1 processes at once, 2 or 4.
        images: images per block in stage 3, 2 or 4.
    """

    files: ClassVar[tuple[str, ...]] = NETWORKS
    """The source, for `read_source`."""

    rows: int = 2
    images: int = 2

    def definitions(self, stage: int) -> list[str]:
        """Compiler options for one stage."""
        return [f"-DSTAGE={stage}", f"-DROWS={self.rows}", f"-DIMAGES={self.images}"]

    def threads(self, stage: int) -> int:
        """Threads per block."""
        return {1: 256, 2: 128, 3: 64 * self.images}[stage]

    def images_per_block(self, stage: int) -> int:
        return self.images if stage == 3 else 1

    def shared_bytes(self, stage: int) -> int:
        """Shared memory per block: two buffers for the activations of its images, with borders."""
        channels, width = {1: (16, 34), 2: (32, 18), 3: (64, 10)}[stage]
        return self.images_per_block(stage) * 2 * channels * width * width * 2


@dataclasses.dataclass(frozen=True)
class WideShape(Shape):
    """That of the kernels for networks with more channels.

    Attributes:
        width: how many times the channels of the paper's networks, 2 or 3: the activations of wider
            ones do not fit in shared memory.
        parts: of 64 pixels, which a warp computes at once, 1 or 2: with 2 fewer reads of weights,
            but twice the registers. By default as measured on an H200.
    """

    files: ClassVar[tuple[str, ...]] = WIDE_NETWORKS

    width: int = 2
    parts: int | None = None

    @property
    def _parts(self) -> int:
        return self.parts or (2 if self.width == 2 else 1)

    @property
    def _group(self) -> int:
        """Channels that a warp computes at once: those of the first stage."""
        return 16 * self.width

    def _channels(self, stage: int) -> int:
        return self._group << (stage - 1)

    def _warps(self, stage: int) -> int:
        """One for each piece of a convolution, if there are enough registers for their sums."""
        pixels = 32 * 32 >> 2 * (stage - 1)
        pieces = self.images_per_block(stage) * pixels // (64 * self._parts) << (stage - 1)
        return min(pieces, 16 if self._parts * self._group <= 32 else 8)

    def definitions(self, stage: int) -> list[str]:
        numbers = {
            "STAGE": stage,
            "CHANNELS": self._channels(stage),
            "NEXT": self._channels(stage + 1),
            "GROUP": self._group,
            "PARTS": self._parts,
            "WARPS": self._warps(stage),
            "BLOCKS": 2 if self.width == 2 and stage > 1 else 1,
        }
        return [f"-D{name}={number}" for name, number in numbers.items()]

    def threads(self, stage: int) -> int:
        return 32 * self._warps(stage)

    def images_per_block(self, stage: int) -> int:
        return 2 if stage == 3 else 1

    def shared_bytes(self, stage: int) -> int:
        """Two buffers of activations with borders."""
        side = (64 >> stage) + 2
        return self.images_per_block(stage) * 2 * self._channels(stage) * side * side * 2


@dataclasses.dataclass(frozen=True)
class MaskShape(Shape):
    """That of the same kernels if they write masks too."""

    def definitions(self, stage: int) -> list[str]:
        return [*super().definitions(stage), "-DMASKS"]


@dataclasses.dataclass(frozen=True)
class GradientShape(Shape):
    """That of the kernels of gradients."""

    files: ClassVar[tuple[str, ...]] = GRADIENTS

    def shared_bytes(self, stage: int) -> int:
        """As in the forward pass, or a buffer and two for gradients of the next stage."""
        if stage == 3:
            return super().shared_bytes(3) + self.images * 64 * 4
        channels, width = {1: (16, 34), 2: (32, 18)}[stage]
        beyond = 2 * channels * (width // 2 + 1) ** 2 * 2 * 2
        return channels * width * width * 2 + beyond


@dataclasses.dataclass(frozen=True)
class IntegerShape(Shape):
    """That of the kernels in 8-bit integers."""

    files: ClassVar[tuple[str, ...]] = INTEGERS

    def shared_bytes(self, stage: int) -> int:
        """Two buffers of bytes with borders, and what shortcuts carry in float16."""
        channels, width = {1: (16, 32), 2: (32, 16), 3: (64, 8)}[stage]
        pixels, with_border = width * width, (width + 2) * (width + 2)
        return self.images_per_block(stage) * 2 * channels * (with_border + pixels)


@dataclasses.dataclass(frozen=True)
class WideIntegerShape(Shape):
    """That of the kernels in 8-bit integers for wide networks.

    Attributes:
        width: how many times the channels of the paper's networks, at least 2.
    """

    files: ClassVar[tuple[str, ...]] = WIDE_INTEGERS

    width: int = 2

    def channels(self, stage: int) -> int:
        """Of a stage: a multiple of 32, what a warp computes at once."""
        return -(-(8 << stage) * self.width // 32) * 32

    def definitions(self, stage: int) -> list[str]:
        channels, following = self.channels(stage), self.channels(stage + 1)
        numbers = {"STAGE": stage, "CHANNELS": channels, "NEXT": following}
        numbers["WARPS"] = self.threads(stage) // 32
        return ["-DWIDE", *(f"-D{name}={number}" for name, number in numbers.items())]

    def threads(self, stage: int) -> int:
        if stage == 1:
            return 256
        return 96 if self.channels(stage) % 128 and self.channels(stage) > 64 else 128

    def images_per_block(self, stage: int) -> int:
        return 2 if stage == 3 else 1

    def shared_bytes(self, stage: int) -> int:
        """Two buffers of bytes with borders."""
        size = 64 >> stage
        return self.images_per_block(stage) * 2 * self.channels(stage) * (size + 2) * (size + 2)
