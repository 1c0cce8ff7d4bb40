"""Two models on the same images: is the difference more than the luck of the subset?"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from sween.errors import BadInput
from sween.evaluation.accuracy import Floats, RadiusField, check_radii, counted_radii
from sween.evaluation.groups import pair_by_index
from sween.records import Certificate
from sween.seeding import numpy_generator

CHUNK_ELEMENTS = 2_000_000
"""Drawn image numbers held at once: 16 MB, whatever the images and resamples."""

Statistic = Literal["acr"] | float
"""The average certified radius, or the certified accuracy at a radius."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedInterval:
    """The difference of two models on the same images, with its bootstrap interval.

    Attributes:
        first: the statistic of the first model.
        second: the statistic of the second.
        difference: first - second.
        low: lower end of the interval for the difference.
        high: upper end.
        confidence: the interval's nominal coverage.
        statistic: "acr", or the radius of the certified accuracy.
        resamples: bootstrap resamples drawn.
        indices: the images compared, ascending.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    confidence: float
    statistic: Statistic
    resamples: int
    indices: tuple[int, ...]

    @property
    def count(self) -> int:
        """Images compared."""
        return len(self.indices)

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of no difference."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    first: Sequence[Certificate],
    second: Sequence[Certificate],
    *,
    statistic: Statistic = "acr",
    radius: RadiusField = "radius",
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedInterval:
    """Percentile bootstrap interval for the difference of two models, image by image.

    Images are resampled with replacement, both models' answers together, so what makes an image
    hard for both cancels. The interval has its confidence approximately, for many images; it
    speaks of the choice of test images alone, not of training or certification randomness.

    Args:
        first: one model's certificates.
        second: another's, on exactly the same images.
        statistic: "acr", or a radius for the certified accuracy there.
        radius: the certificate's field to judge.
        resamples: bootstrap resamples, at least 1.
        confidence: strictly between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        BadInput: the two cover different images, or an image twice.
    """
    _check(statistic, resamples, confidence)
    left, right = pair_by_index(first, second)
    ours = _contributions(left, statistic, radius)
    theirs = _contributions(right, statistic, radius)
    differences = ours - theirs
    means = _resampled_means(differences, resamples, seed)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return PairedInterval(
        first=float(ours.mean()),
        second=float(theirs.mean()),
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        confidence=confidence,
        statistic=statistic,
        resamples=resamples,
        indices=tuple(certificate.index for certificate in left),
    )


def _check(statistic: Statistic, resamples: int, confidence: float) -> None:
    if isinstance(statistic, str):
        if statistic != "acr":
            raise BadInput(
                "statistic", expected='"acr" or a radius', got=repr(statistic), fix='use "acr"'
            )
    else:
        check_radii([statistic])
    if resamples < 1:
        raise BadInput("resamples", expected="at least 1", got=resamples, fix="try 10000")
    if not 0 < confidence < 1:
        raise BadInput(
            "confidence", expected="strictly between 0 and 1", got=confidence, fix="try 0.95"
        )


def _contributions(
    certificates: Sequence[Certificate], statistic: Statistic, field: RadiusField
) -> Floats:
    """Per image, the numbers whose mean is the statistic."""
    counted = counted_radii(certificates, radius=field)
    if isinstance(statistic, str):
        return counted.radii
    return (counted.certified & (counted.radii >= statistic)).astype(np.float64)


def _resampled_means(values: Floats, resamples: int, seed: int) -> Floats:
    """Means of resamples with replacement, a bounded number of draws at a time."""
    generator = numpy_generator(seed, "bootstrap")
    at_once = max(1, CHUNK_ELEMENTS // values.size)
    chunks = []
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        draws = generator.integers(0, values.size, size=(rows, values.size))
        chunks.append(values[draws].mean(axis=1))
    return np.concatenate(chunks)
