"""Augmentation and noise keyed by example: what an image gets depends on no other image.

Each image of the training set has its own draws in each epoch, whichever process, batch or device
it is trained in.
"""

import torch

from sween.philox import counters, normal_draws, random_words, stream_words
from sween.seeding import derive_key
from sween.training.augment import CropFlips


class KeyedDraws:
    """The draws of an epoch; `compiled` draws the noise by one kernel."""

    def __init__(self, device: torch.device, *, compiled: bool) -> None:
        self._device = device
        self._normals = torch.compile(normal_draws) if compiled else normal_draws

    def start_epoch(self, seed: int, purpose: str, epoch: int) -> None:
        """Draw for this epoch from now on."""
        keys = [
            derive_key(seed, f"{purpose}: {what}", block=epoch)
            for what in ("crop-flips", "noise", "uniforms")
        ]
        self._crop_flips, self._noise, self._uniforms = torch.split(
            stream_words(keys, self._device), 1
        )

    def crop_flips(self, examples: torch.Tensor, *, padding: int) -> CropFlips:
        """A crop position and a flip for each of N training images, given by their positions."""
        down, right, flips, _ = random_words(self._crop_flips, examples)
        shifts = torch.cat([down, right]) * (2 * padding + 1) >> 32
        return CropFlips(shifts, flips[0] >> 31 == 1)

    def noise(self, examples: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """N(0, 1) draws for each of N training images: (N, *shape)."""
        # An image's stream is the cipher of its position, under the key of the epoch.
        streams = torch.cat(random_words(self._noise, examples)).T
        count = torch.Size(shape).numel()
        draws = self._normals(streams, counters(count, self._device))
        return draws[:, :count].reshape(len(examples), *shape)

    def uniforms(self, examples: torch.Tensor, count: int) -> torch.Tensor:
        """Draws from [0, 1) for each of N training images: (N, count)."""
        streams = torch.cat(random_words(self._uniforms, examples)).T
        words = torch.cat(random_words(streams, counters(count, self._device)), dim=1)[:, :count]
        return (words >> 8).float() * 2.0**-24  # 24 bits, which float32 holds exactly
