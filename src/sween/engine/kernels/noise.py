"""Noisy copies of images with custom kernels (`noise.cu`)."""

from collections.abc import Sequence
from typing import Protocol

import torch

from sween.cuda import Argument

THREADS = 256
"""Threads per block."""


class LaunchNoise(Protocol):
    """Runs a kernel of noise.cu by name."""

    def __call__(self, kernel: str, blocks: int, arguments: Sequence[Argument]) -> None: ...


class NoiseKernels:
    """Blocks of noisy copies, with the same draws as the plain torch operations.

    Args:
        launch: runs the kernels.
    """

    def __init__(self, launch: LaunchNoise) -> None:
        self._launch = launch

    def gaussian(
        self, images: torch.Tensor, streams: torch.Tensor, *, sigma: float, copies: int
    ) -> torch.Tensor:
        """`copies` of each image x as x + sigma * N(0, I): (N * copies, C, H, W).

        Args:
            images: float32 (N, C, H, W).
            streams: (N, 4), one per image, as returned by `sween.philox.stream_words`.
            sigma: noise level.
            copies: noisy copies per image.
        """
        images, numbers = images.contiguous(), images[0].numel()
        noisy = images.new_empty(len(images) * copies, *images.shape[1:])
        level = images.new_full((1,), sigma)  # float32, whatever torch's default is
        tail = self._tail(images, copies * numbers, numbers, each=4)
        self._run("gaussian", len(images), [streams, images, level, noisy, *tail])
        return noisy

    def exact(
        self,
        images: torch.Tensor,
        streams: torch.Tensor,
        *,
        cumulative: torch.Tensor,
        first: int,
        levels: int,
        copies: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`copies` of each image plus integer steps drawn from a table, and which copies are valid.

        Args:
            images: float32 (N, C, H, W), multiples of 1/levels.
            streams: (N, 4), one per image.
            cumulative: int64 cumulative probabilities in units of 2**-62, on the images' device.
            first: the step of the table's first entry.
            levels: grid steps between 0 and 1.
            copies: noisy copies per image.
        """
        images, numbers = images.contiguous(), images[0].numel()
        noisy = images.new_empty(len(images) * copies, *images.shape[1:])
        valid = torch.ones(len(noisy), dtype=torch.uint8, device=images.device)
        table: list[Argument] = [cumulative, noisy, valid, len(cumulative), first, levels]
        tail = self._tail(images, copies * numbers, numbers, each=2)
        self._run("exact", len(images), [streams, images, *table, *tail])
        return noisy, valid.bool()

    def _tail(self, images: torch.Tensor, count: int, numbers: int, *, each: int) -> list[int]:
        """Draws per stream, values per image, and counters per stream.

        A counter gives `each` draws.
        """
        if images.dtype != torch.float32:
            raise ValueError(f"expected float32 images, got {images.dtype}")
        if count >= 2**31:
            raise ValueError(f"expected fewer than 2**31 draws per stream, got {count}")
        return [count, numbers, -(-count // each)]

    def _run(self, kernel: str, streams: int, arguments: Sequence[Argument]) -> None:
        steps = arguments[-1]
        assert isinstance(steps, int)
        self._launch(kernel, streams * -(-steps // THREADS), arguments)
