"""Noise whose distribution is exact in floating point: Gaussian noise rounded to the pixel grid.

x + noise in floating point is not Gaussian around x: its low-order bits reveal x, and a classifier
that reads them can be certified although it is not robust (Jin et al. 2022; Voracek and Hein 2023).
Here the certified classifier is h(z) = f(z rounded to multiples of 1/levels). For an image on that
grid, x + N(0, sigma^2) rounded is x + T / levels with

    P(T = t) = Phi((t + 1/2) / (levels sigma)) - Phi((t - 1/2) / (levels sigma)),

a distribution on the integers, sampled by comparing a 62-bit random number with a table computed
once in high precision. Sums of integers are exact, and the conversion to float at the end is part
of f. So the theorem holds for h as computed. The table rounds each probability down; the total mass
lost (below 1e-14) belongs to no T, and a vote that draws it counts for no class.

What is covered: for an image x on the grid with radius R, no l2 perturbation smaller than R, on the
grid or off it, changes the prediction of g, the smoothed classifier of h. Votes can only be drawn
for an x' on the grid: off the grid T has a different distribution. Rounding such an x' first does
not help: that evaluates g(round(x')), and rounding moves d pixels by up to sqrt(d) / (2 levels),
.11 for CIFAR images, so round(x') may lie outside the ball of radius R although x' lies inside. So
images off the grid are refused. An 8-bit image is always on the grid, so every adversarial example
stored as one, within R of x, is covered.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from sween.bounds.radius import noise_level
from sween.engine.kernels import NoiseKernels
from sween.engine.tracing import compile_locked
from sween.errors import BadInput
from sween.philox import counters, random_words, stream_words
from sween.seeding import NOISE_BLOCK

Words62 = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BITS = 62
DIGITS = 60
"""Decimal digits of the table's arithmetic: far more than the 19 that 62 bits hold."""

MAX_STEPS = 2000
"""The most grid steps per sigma, at which computing the table takes some twenty seconds."""


@dataclasses.dataclass(frozen=True)
class NoiseTable:
    """Cumulative probabilities of T in units of 2**-62, starting at T = `first`."""

    first: int
    cumulative: torch.Tensor


@functools.lru_cache(maxsize=8)
def noise_table(sigma: float, levels: int) -> NoiseTable:
    """The distribution of T for a noise level; takes about a second at the paper's noise levels."""
    import mpmath  # only this table needs it

    if sigma * levels < 1:
        raise BadInput(
            "sigma",
            expected=f"at least one grid step, 1/{levels} = {1 / levels:.4g}, for exact noise",
            got=f"{sigma:.6g}",
            fix="raise sigma, or use float32 noise",
        )
    if not sigma * levels <= MAX_STEPS:
        raise BadInput(
            "sigma",
            expected=f"at most {MAX_STEPS / levels:.4g} ({MAX_STEPS} grid steps) for exact noise",
            got=f"{sigma:.6g}",
            fix="lower sigma, or use float32 noise",
        )
    with mpmath.workdps(DIGITS):
        scale = levels * mpmath.mpf(sigma)
        masses = [_mass(0, scale)]
        while masses[-1] > 0:
            masses.append(_mass(len(masses), scale))
        masses.pop()
    whole = [*masses[:0:-1], *masses]
    return NoiseTable(1 - len(masses), torch.from_numpy(np.cumsum(np.asarray(whole, np.int64))))


def _mass(t: int, scale: object) -> int:
    """floor(2**62 P(T = t)) for t >= 0, computed from the upper tail, which loses no digits."""
    import mpmath

    half = mpmath.mpf(1) / 2
    upper = (mpmath.erfc((t - half) / (scale * mpmath.sqrt(2)))) / 2
    beyond = (mpmath.erfc((t + half) / (scale * mpmath.sqrt(2)))) / 2
    return int(mpmath.floor((upper - beyond) * 2**BITS))


class ExactNoise:
    """x + T / levels, exactly, for images on the grid.

    Args:
        sigma: noise level.
        levels: grid steps between 0 and 1.
        compile: draw with one compiled kernel; only on a GPU, with a fixed number of blocks.
        kernels: draw with these custom kernels; only on a GPU.
    """

    def __init__(
        self,
        *,
        sigma: float,
        levels: int,
        compile: bool = False,
        kernels: NoiseKernels | None = None,
    ) -> None:
        level = noise_level(sigma)  # rounded to float32, as for every radius
        self.table, self.levels, self._kernels = noise_table(level, levels), levels, kernels
        self._cumulative = self.table.cumulative
        self._divisor = torch.tensor(levels, dtype=torch.float32)
        self._words: Words62 = _compiled_words() if compile else words_of_62_bits

    @property
    def name(self) -> str:
        return f"exact(levels={self.levels})"

    @property
    def stream_prefix(self) -> str:
        return f"{self.name} "

    def check(self, images: torch.Tensor) -> None:
        """Refuse images off the grid, for which the distribution would be different.

        The error does not suggest rounding: that evaluates a different image, which may lie outside
        a certified radius although the given one lies inside.
        """
        grid = self._divided(self._positions(images))
        if not torch.equal(grid, images):
            away = float((images - grid).abs().max())
            raise BadInput(
                "images",
                expected=f"multiples of 1/{self.levels} for exact noise, which certifies an image "
                "as given",
                got=f"a pixel {away:.3g} from the nearest multiple of 1/{self.levels}",
                fix=f"pass the stored pixels divided by {self.levels}, or use float32 noise",
            )

    def missing(self, device: torch.device) -> float:
        """0: the probability mass that the table loses counts as a vote for no class."""
        return 0.0

    def copies(
        self, images: torch.Tensor, keys: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A block of noisy copies of each image, and which of them drew table values only."""
        cumulative = self._cumulative = self._cumulative.to(images.device)
        if self._kernels is not None:
            return self._kernels.exact(
                images,
                stream_words(keys, images.device),
                cumulative=cumulative,
                first=self.table.first,
                levels=self.levels,
                copies=NOISE_BLOCK,
            )
        shape = (len(images), NOISE_BLOCK, *images.shape[1:])
        numbers = self._draw(keys, torch.Size(shape[1:]).numel(), images.device)
        drawn = torch.searchsorted(cumulative, numbers, right=True)
        valid = (drawn < len(cumulative)).view(len(images) * NOISE_BLOCK, -1).all(dim=1)
        steps = (drawn + self.table.first).view(shape)
        positions = self._positions(images)[:, None].long() + steps
        return self._divided(positions.float()).flatten(0, 1), valid

    def _divided(self, positions: torch.Tensor) -> torch.Tensor:
        """positions / levels, rounded once. A tensor divides; for a number CUDA would multiply by
        the reciprocal."""
        self._divisor = self._divisor.to(positions.device)
        return positions / self._divisor

    def _positions(self, images: torch.Tensor) -> torch.Tensor:
        return (images * self.levels).round()

    def _draw(self, keys: Sequence[int], count: int, device: torch.device) -> torch.Tensor:
        """Random 62-bit numbers, (len(keys), count)."""
        if device.type == "cpu":
            numbers = [
                np.random.Generator(np.random.Philox(key=key)).integers(
                    0, 1 << BITS, count, dtype=np.int64
                )
                for key in keys
            ]
            return torch.from_numpy(np.stack(numbers))
        words = self._words(stream_words(keys, device), counters(2 * count, device))
        return words[:, :count].contiguous()


def words_of_62_bits(streams: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Two 62-bit numbers per counter of each stream: (S, 2 * len(steps))."""
    a, b, c, d = random_words(streams, steps)
    return torch.cat([(a << 30) | (b >> 2), (c << 30) | (d >> 2)], dim=1)


@functools.cache
def _compiled_words() -> Words62:
    return compile_locked(words_of_62_bits)
