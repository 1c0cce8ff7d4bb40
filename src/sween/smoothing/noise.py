"""Noisy copies of images for the vote engine, block by block, keyed."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from sween.philox import normal_draws
from sween.seeding import Normals, derive_key, noisy_copies, normals_of, philox_normals


@dataclasses.dataclass(frozen=True)
class Job:
    """One noise block of one image: which, and how many of its draws count."""

    position: int
    block: int
    used: int


class GaussianNoise:
    """x + sigma * N(0, I) in float32.

    Args:
        sigma: noise level.
        seed: of the noise.
        compile: draw through one compiled kernel; only on a GPU, where blocks come in one number.
    """

    def __init__(self, *, sigma: float, seed: int, compile: bool) -> None:
        self.sigma, self.seed = sigma, seed
        self._normals: Normals = _compiled_normals if compile else normals_of

    def noisy(
        self, images: torch.Tensor, examples: Sequence[int], purpose: str, jobs: Sequence[Job]
    ) -> torch.Tensor:
        """The jobs' noisy copies, (len(jobs) * NOISE_BLOCK, C, H, W), in the jobs' order.

        Args:
            images: (N, C, H, W), which the jobs' positions refer to.
            examples: keys of the images' noise.
            purpose: of the votes; different ones get independent noise.
            jobs: which blocks.
        """
        keys = [derive_key(self.seed, purpose, examples[job.position], job.block) for job in jobs]
        positions = torch.tensor([job.position for job in jobs])
        if images.device.type == "cuda":
            positions = positions.pin_memory().to(images.device, non_blocking=True)
        return noisy_copies(images[positions], keys, sigma=self.sigma, normals=self._normals)


@functools.cache
def _compiled_draws() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return torch.compile(normal_draws, dynamic=False)


def _compiled_normals(
    keys: Sequence[int], shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    return philox_normals(keys, shape, device, _compiled_draws())
