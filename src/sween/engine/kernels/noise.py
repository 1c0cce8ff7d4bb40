"""Noisy copies of images by kernels of our own (`noise.cu`)."""

from collections.abc import Sequence
from typing import Protocol

import torch

from sween.engine.kernels.cifar_resnet import Argument

THREADS = 256
"""Of a block."""


class LaunchNoise(Protocol):
    """Runs a kernel of noise.cu, by its name."""

    def __call__(self, kernel: str, blocks: int, arguments: Sequence[Argument]) -> None: ...


class NoiseKernels:
    """Blocks of noisy copies, drawn as the plain torch operations draw them.

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
            streams: (N, 4), one an image, as `sween.philox.stream_words` gives them.
            sigma: noise level.
            copies: of each image.
        """
        images, numbers = images.contiguous(), images[0].numel()
        noisy = images.new_empty(len(images) * copies, *images.shape[1:])
        level = images.new_full((1,), sigma)  # float32, whatever torch's default is
        tail = self._tail(images, copies * numbers, numbers, each=4)
        self._run("gaussian", [streams, images, level, noisy, *tail])
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
        """`copies` of each image with whole steps of a table's law, and which of them are valid.

        Args:
            images: float32 (N, C, H, W), multiples of 1/levels.
            streams: (N, 4), one an image.
            cumulative: int64 table of the law, in units of 2**-62, on the images' device.
            first: the step that the table's first entry stands for.
            levels: steps of the grid between 0 and 1.
            copies: of each image.
        """
        images, numbers = images.contiguous(), images[0].numel()
        noisy = images.new_empty(len(images) * copies, *images.shape[1:])
        valid = torch.ones(len(noisy), dtype=torch.uint8, device=images.device)
        law: list[Argument] = [cumulative, noisy, valid, len(cumulative), first, levels]
        tail = self._tail(images, copies * numbers, numbers, each=2)
        self._run("exact", [streams, images, *law, *tail])
        return noisy, valid.bool()

    def _tail(self, images: torch.Tensor, count: int, numbers: int, *, each: int) -> list[int]:
        """Streams, draws of each, numbers of an image, and counters of a stream, `each` draws."""
        if images.dtype != torch.float32:
            raise ValueError(f"expected float32 images, got {images.dtype}")
        if count >= 2**31:
            raise ValueError(f"{count} draws of a stream are more than the kernels can number")
        return [len(images), count, numbers, -(-count // each)]

    def _run(self, kernel: str, arguments: Sequence[Argument]) -> None:
        streams, steps = arguments[-4], arguments[-1]
        assert isinstance(streams, int)
        assert isinstance(steps, int)
        self._launch(kernel, -(-streams * steps // THREADS), arguments)
