"""Noisy copies of images for the vote engine, in keyed blocks."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import torch

from sween.arguments import whole_number
from sween.bounds.radius import noise_level
from sween.engine.exact_noise import ExactNoise
from sween.engine.kernels import NoiseKernels
from sween.engine.tracing import compile_locked
from sween.errors import BadInput, UnknownName
from sween.interleave import to_device_async
from sween.philox import normal_draws, stream_words
from sween.seeding import NOISE_BLOCK, Normals, derive_key, noisy_copies, normals_of, philox_normals

NOISES = ("float32", "exact")

FLOAT_TOLERANCE = 1e-4
"""How far implementations of float32 noise may differ: logarithms and sines round differently."""

PIXEL_LEVELS = 255
"""Steps of an 8-bit pixel between 0 and 1."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One noise block of one image, and how many of its draws count."""

    position: int
    block: int
    used: int


GPU_MISSING, CPU_MISSING = 2.0**-33, 1.1e-15
"""Upper bounds on the total variation distance between one float32 noise value and a Gaussian that
is due to the truncated tail.

On a GPU the Box-Muller transform of 32-bit uniforms gives pairs of radius at most sqrt(66 log 2) =
6.764; a Gaussian pair lies outside with probability 2**-33. On a CPU numpy's ziggurat draws the
tail from uniforms of at least 23 bits, so that |z| reaches 8.01; the probability beyond is
1.1e-15."""


class Noise(Protocol):
    """A noise distribution, and how to draw from it."""

    @property
    def name(self) -> str:
        """For records."""
        ...

    @property
    def stream_prefix(self) -> str:
        """Precedes the purpose in a stream's key, so that distributions do not share draws."""
        ...

    def check(self, images: torch.Tensor) -> None:
        """Refuse images to which the noise cannot be added."""
        ...

    def missing(self, device: torch.device) -> float:
        """Total variation distance from a Gaussian, per value, due to the truncated tail."""
        ...

    def copies(
        self, images: torch.Tensor, keys: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A block of noisy copies of each image, (N * NOISE_BLOCK, C, H, W), and which count.

        None in place of the latter if all of them count.
        """
        ...


class GaussianNoise:
    """x + sigma * N(0, I) in float32.

    Certificates treat it as exactly Gaussian; see `exact_noise.py` for what rounding may leak.

    Args:
        sigma: noise level, rounded to float32 as for every radius (see `noise_level`).
        compile: draw with one compiled kernel; only on a GPU, with a fixed number of blocks.
        kernels: draw with these custom kernels; only on a GPU.
    """

    name = "float32"
    stream_prefix = ""

    def __init__(
        self, *, sigma: float, compile: bool = False, kernels: NoiseKernels | None = None
    ) -> None:
        self.sigma, self._kernels = noise_level(sigma), kernels
        self._normals: Normals = _compiled_normals if compile else normals_of

    def check(self, images: torch.Tensor) -> None:
        """Accept any image."""

    def missing(self, device: torch.device) -> float:
        """The tail is truncated earlier on a GPU; see `GPU_MISSING`."""
        return CPU_MISSING if device.type == "cpu" else GPU_MISSING

    def copies(
        self, images: torch.Tensor, keys: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A block of noisy copies of each image; all of them count."""
        if self._kernels is not None:
            streams = stream_words(keys, images.device)
            noisy = self._kernels.gaussian(images, streams, sigma=self.sigma, copies=NOISE_BLOCK)
            return noisy, None
        return noisy_copies(images, keys, sigma=self.sigma, normals=self._normals), None


@dataclasses.dataclass(frozen=True)
class NoiseKind:
    """Which noise distribution to use.

    Attributes:
        name: float32 or exact.
        levels: grid steps of exact noise between 0 and 1; 255 for 8-bit pixels.

    Example:
        >>> from sween.engine import NoiseKind
        >>> NoiseKind("exact", levels=16) == NoiseKind.recorded("exact(levels=16)")
        True
    """

    name: str = "float32"
    levels: int = PIXEL_LEVELS

    def __post_init__(self) -> None:
        if self.name not in NOISES:
            raise UnknownName("noise", self.name, NOISES)
        object.__setattr__(self, "levels", whole_number("levels", self.levels))
        if self.levels < 1:
            raise BadInput("levels", expected="at least 1", got=self.levels, fix="use 255")

    @classmethod
    def recorded(cls, name: str) -> Self:
        """The kind of noise that a record names; see `Noise.name`."""
        kind, _, levels = name.removesuffix(")").partition("(levels=")
        return cls(kind, int(levels or PIXEL_LEVELS))

    def make(
        self, sigma: float, *, compile: bool = False, kernels: NoiseKernels | None = None
    ) -> Noise:
        if self.name == "exact":
            return ExactNoise(sigma=sigma, levels=self.levels, compile=compile, kernels=kernels)
        return GaussianNoise(sigma=sigma, compile=compile, kernels=kernels)

    @property
    def tolerance(self) -> float:
        """How far two implementations may differ by rounding, as a multiple of max(sigma, 1)."""
        return 0.0 if self.name == "exact" else FLOAT_TOLERANCE


def noisy_of_jobs(
    noise: Noise,
    images: torch.Tensor,
    jobs: Sequence[Job],
    *,
    seed: int,
    purpose: str,
    examples: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The jobs' noisy copies, in the jobs' order, and which of them count.

    Args:
        noise: distribution of the noise.
        images: (N, C, H, W), which the jobs' positions refer to.
        jobs: which blocks.
        seed: of the noise.
        purpose: of the votes; different purposes get independent noise.
        examples: noise keys of the images.
    """
    stream = f"{noise.stream_prefix}{purpose}"
    keys = [derive_key(seed, stream, examples[job.position], job.block) for job in jobs]
    positions = to_device_async(torch.tensor([job.position for job in jobs]), images.device)
    return noise.copies(images[positions], keys)


@functools.cache
def _compiled_draws() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return compile_locked(normal_draws)


def _compiled_normals(
    keys: Sequence[int], shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    return philox_normals(keys, shape, device, _compiled_draws())
