"""Paired comparison of two models on the same images, by bootstrap over the images."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sween.errors import BadInput
from sween.evaluation.accuracy import Floats, counted_radii
from sween.evaluation.groups import pair_by_index
from sween.records import Certificate
from sween.seeding import numpy_generator

Integers = npt.NDArray[np.int64]

CHUNK_ELEMENTS = 100_000
"""Resampled image numbers held at once, however many images and resamples: 0.8 MB, which stay in a
processor's cache. With 16 MB `bootstrap_over_envelope` took three times as long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedInterval:
    """The difference in ACR of two models on the same images, with its bootstrap interval.

    Attributes:
        first: ACR of the first model.
        second: ACR of the second.
        difference: first - second.
        low: lower end of the interval for the difference.
        high: upper end.
        confidence: the interval's nominal coverage.
        indices: the images compared, ascending.

    Example:
        See `paired_bootstrap`.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    confidence: float
    indices: tuple[int, ...]

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of no difference."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    first: Sequence[Certificate],
    second: Sequence[Certificate],
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedInterval:
    """Percentile bootstrap interval for the difference in ACR of two models, paired by image.

    Images are resampled with replacement, for both models together, so that what makes an image
    hard for both cancels. The coverage is approximate, for many images. The interval accounts for
    the choice of test images alone, not for randomness in training or certification.

    Args:
        first: one model's certificates.
        second: another's, on exactly the same images.
        resamples: bootstrap resamples, at least 1.
        confidence: strictly between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        BadInput: the two cover different images, or an image twice.

    Example:
        >>> import sween
        >>> from sween.evaluation import bootstrap_over_envelope, by_model, paired_bootstrap
        >>> digits = sween.load_dataset("digits")
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> smoothed = sween.SmoothedClassifier(
        ...     ensemble, sigma=0.5, num_classes=10, member_names=ensemble.member_names
        ... )
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(5), n=200, quiet=True
        ... )
        >>> models = by_model(run.rows)
        >>> list(models)
        ['digits-mlp', 'digits-conv', 'digits-resnet', 'SWEEN-3']
        >>> ours = models.pop("SWEEN-3")
        >>> lead = paired_bootstrap(ours, models["digits-mlp"], resamples=100)
        >>> lead.low <= lead.difference <= lead.high
        True
        >>> lead = bootstrap_over_envelope(ours, list(models.values()), resamples=100)
        >>> lead.low <= lead.high
        True
    """
    _check(resamples, confidence)
    left, right = pair_by_index(first, second)
    ours, theirs = counted_radii(left).radii, counted_radii(right).radii
    differences = ours - theirs
    low, high = bootstrap_interval(
        differences, resamples=resamples, confidence=confidence, seed=seed
    )
    return PairedInterval(
        first=float(ours.mean()),
        second=float(theirs.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        confidence=confidence,
        indices=tuple(certificate.index for certificate in left),
    )


def bootstrap_over_envelope(
    model: Sequence[Certificate],
    others: Sequence[Sequence[Certificate]],
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedInterval:
    """Percentile bootstrap interval for a model's ACR minus the area under the others' envelope.

    The envelope is the best of the others at every radius, recomputed in every resample. A
    resample's envelope is higher on average, so the interval is biased low. As in
    `paired_bootstrap`, it accounts for the choice of test images alone.

    Args:
        model: one model's certificates.
        others: those of at least one other, each on exactly the same images.
        resamples: bootstrap resamples, at least 1.
        confidence: strictly between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        BadInput: no others, different images, or an image twice.

    Example:
        See `paired_bootstrap`.
    """
    _check(resamples, confidence)
    if not others:
        raise BadInput("others", expected="at least one model", got="none", fix="pass candidates")
    pairs = [pair_by_index(model, other) for other in others]
    ours = counted_radii(pairs[0][0]).radii
    envelope = _Envelope([counted_radii(right).radii for _, right in pairs])
    differences = []
    for draws in _draws(ours.size, resamples, seed):
        weights = np.stack([np.bincount(row, minlength=ours.size) for row in draws]) / ours.size
        differences.append(weights @ ours - envelope.areas(weights))
    low, high = _percentiles(np.concatenate(differences), confidence)
    second = float(envelope.areas(np.full((1, ours.size), 1 / ours.size))[0])
    return PairedInterval(
        first=float(ours.mean()),
        second=second,
        difference=float(ours.mean()) - second,
        low=low,
        high=high,
        confidence=confidence,
        indices=tuple(certificate.index for certificate in pairs[0][0]),
    )


def bootstrap_interval(
    values: Floats, *, resamples: int, confidence: float, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap interval for the mean of one value per image.

    Example:
        >>> import numpy as np
        >>> from sween.evaluation import bootstrap_interval
        >>> radii = np.linspace(0.0, 1.0, 101)
        >>> low, high = bootstrap_interval(radii, resamples=1000, confidence=0.95, seed=0)
        >>> 0.4 < low < 0.5 < high < 0.6
        True
    """
    draws = _draws(values.size, resamples, seed)
    return _percentiles(np.concatenate([values[rows].mean(axis=1) for rows in draws]), confidence)


def simultaneous_intervals(
    values: Floats, *, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> tuple[Floats, Floats]:
    """Bootstrap intervals for the means of several values per image, which hold all at once.

    Images are resampled with replacement, and every mean is widened by the same number of its own
    standard errors, the quantile of the largest deviation over all of them. The coverage is
    approximate, for many images: intervals of shares that only a few images make differ from 0 or 1
    are too narrow, and those of 0 and 1 themselves have no width.

    Args:
        values: (images, means), finite.
        resamples: bootstrap resamples, at least 1.
        confidence: that all intervals hold, strictly between 0 and 1.
        seed: the same seed gives the same intervals.

    Returns:
        The lower and the upper ends, one for each mean.

    Example:
        >>> import numpy as np
        >>> from sween.evaluation import simultaneous_intervals
        >>> correct = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]] * 25)
        >>> low, high = simultaneous_intervals(correct, resamples=1000)
        >>> ((low < [0.75, 0.5]) & (high > [0.75, 0.5])).tolist()
        [True, True]
    """
    _check(resamples, confidence)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise BadInput(
            "values",
            expected="finite numbers of shape (images, means), at least one of each",
            got=f"shape {values.shape}" + ("" if np.isfinite(values).all() else ", not all finite"),
            fix="pass a row for each image",
        )
    means = values.mean(axis=0)
    errors = values.std(axis=0) / len(values) ** 0.5
    largest = []
    for rows in _draws(len(values), resamples, seed):
        counts = np.stack([np.bincount(row, minlength=len(values)) for row in rows])
        apart = np.abs(counts @ values / len(values) - means)
        # A value that all images share has no error, and no resample deviates from it.
        largest.append(np.max(apart / np.where(errors > 0, errors, np.inf), axis=1))
    width = float(np.quantile(np.concatenate(largest), confidence)) * errors
    return means - width, means + width


class _Envelope:
    """The area under the highest of several radius-accuracy curves, for weighted images."""

    def __init__(self, radii: Sequence[Floats]) -> None:
        self._orders = [np.argsort(-own, kind="stable") for own in radii]
        steps = np.unique(np.concatenate(radii))
        self._lengths = np.diff(steps, prepend=0.0)
        self._reaching = [own.size - np.searchsorted(np.sort(own), steps) for own in radii]

    def areas(self, weights: Floats) -> Floats:
        """The area for each row of weights, which sum to 1."""
        # An image is a row here: rows are picked several times as fast as columns.
        images = np.ascontiguousarray(weights.T)
        sums = np.zeros((len(images) + 1, len(weights)))
        accuracies = np.zeros((self._lengths.size, len(weights)))
        for order, reaching in zip(self._orders, self._reaching, strict=True):
            np.cumsum(images[order], axis=0, out=sums[1:])
            np.maximum(accuracies, sums[reaching], out=accuracies)
        areas: Floats = self._lengths @ accuracies
        return areas


def _check(resamples: int, confidence: float) -> None:
    if resamples < 1:
        raise BadInput("resamples", expected="at least 1", got=resamples, fix="try 10000")
    if not 0 < confidence < 1:
        raise BadInput(f"confidence: expected a number in (0, 1), got {confidence}; try 0.95")


def _draws(images: int, resamples: int, seed: int) -> Iterator[Integers]:
    """Resamples with replacement, (rows, images) image numbers, a bounded number at a time."""
    generator = numpy_generator(seed, "bootstrap")
    at_once = max(1, CHUNK_ELEMENTS // images)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        yield generator.integers(0, images, size=(rows, images))


def _percentiles(values: Floats, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
