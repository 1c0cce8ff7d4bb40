"""Noisy copies of images for the vote engine, block by block, keyed."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol

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

FLOAT_APART = 1e-4
"""Of float32 noise: logarithms and sines round differently."""

PIXEL_LEVELS = 255
"""Steps of an 8-bit pixel between 0 and 1."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One noise block of one image: which, and how many of its draws count."""

    position: int
    block: int
    used: int


GPU_MISSING, CPU_MISSING = 2.0**-33, 1.1e-15
"""How far the law of one number of float32 noise is from the Gaussian one for want of a tail, in
total variation at most.

On a GPU a pair of numbers has a radius of at most sqrt(66 log 2) = 6.764, from 32-bit uniforms by
Box and Muller's transform; a Gaussian pair lies beyond with probability 2**-33. On a CPU numpy's
ziggurat draws its tail from uniforms of 23 bits or more, so that |z| reaches 8.01, beyond which is
1.1e-15."""


class Noise(Protocol):
    """A law of noise."""

    @property
    def name(self) -> str:
        """For records."""
        ...

    @property
    def stream_prefix(self) -> str:
        """Before the purpose in a stream's key: laws do not share their draws."""
        ...

    def check(self, images: torch.Tensor) -> None:
        """Refuse images that it cannot be added to."""
        ...

    def missing(self, device: torch.device) -> float:
        """Total variation from the Gaussian law, per number, for want of a tail."""
        ...

    def copies(
        self, images: torch.Tensor, keys: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A block of noisy copies of each image, (N * NOISE_BLOCK, C, H, W), and which count.

        None where all of them do.
        """
        ...


class GaussianNoise:
    """x + sigma * N(0, I) in float32; sound but for what rounding may leak (see `exact.py`).

    Args:
        sigma: noise level; its float32, as in every radius (see `noise_level`).
        compile: draw through one compiled kernel; only on a GPU, where blocks come in one number.
        kernels: draw through kernels of our own; only on a GPU.
    """

    name = "float32"
    stream_prefix = ""

    def __init__(
        self, *, sigma: float, compile: bool = False, kernels: NoiseKernels | None = None
    ) -> None:
        self.sigma, self._kernels = noise_level(sigma), kernels
        self._normals: Normals = _compiled_normals if compile else normals_of

    def check(self, images: torch.Tensor) -> None:
        """Any images will do."""

    def missing(self, device: torch.device) -> float:
        """The tail ends sooner on a GPU; see `GPU_MISSING`."""
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
    """Which noise is asked for.

    Attributes:
        name: float32 or exact.
        levels: steps of the grid of exact noise between 0 and 1; 255 for 8-bit pixels.
    """

    name: str = "float32"
    levels: int = PIXEL_LEVELS

    def __post_init__(self) -> None:
        if self.name not in NOISES:
            raise UnknownName("noise", self.name, NOISES)
        object.__setattr__(self, "levels", whole_number("levels", self.levels))
        if self.levels < 1:
            raise BadInput("levels", expected="at least 1", got=self.levels, fix="use 255")

    def make(
        self, sigma: float, *, compile: bool = False, kernels: NoiseKernels | None = None
    ) -> Noise:
        if self.name == "exact":
            return ExactNoise(sigma=sigma, levels=self.levels, compile=compile, kernels=kernels)
        return GaussianNoise(sigma=sigma, compile=compile, kernels=kernels)

    @property
    def apart(self) -> float:
        """How far two ways to draw it may be, times max(sigma, 1): rounding, and no other draw."""
        return 0.0 if self.name == "exact" else FLOAT_APART


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
        noise: the law.
        images: (N, C, H, W), which the jobs' positions refer to.
        jobs: which blocks.
        seed: of the noise.
        purpose: of the votes; different ones get independent noise.
        examples: keys of the images' noise.
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
