"""The paper's gamma-robustness index: the mean of gamma(certified radius) (Definition 1).

Wrong and abstained images have radius 0 and count with gamma(0). Proposition 1 names three gammas:
`certified_at(r)`, the radius itself (`lambda radii: radii`, the average certified radius), and the
volume of the certified ball (`lambda radii: np.exp(log_volume(radii, d))`; in the dimensions of
images volumes under- and overflow, so use `log_average_volume` there).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from sween.errors import BadInput
from sween.evaluation.accuracy import Floats, RadiusField, check_radii, counted_radii
from sween.records import Certificate

Gamma = Callable[[Floats], Floats]
"""A function of radii, float64 (N,) to float64 (N,), applied image by image."""


def robustness_index(
    certificates: Sequence[Certificate], gamma: Gamma, *, radius: RadiusField = "radius"
) -> float:
    """The mean of gamma over one model's images, of certified lower bounds on the true radii.

    For a non-decreasing gamma it is a lower bound on the index of Definition 1, up to the sampling
    of images.

    Example:
        >>> import sween
        >>> from sween.evaluation import robustness_index
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> acr = robustness_index(certificates, lambda radius: radius)
        >>> round(acr - sween.average_certified_radius(certificates), 9)
        0.0
    """
    radii = counted_radii(certificates, radius=radius).radii
    values = np.asarray(gamma(radii), dtype=np.float64)
    if values.shape != radii.shape or np.any(np.isnan(values)):
        expected = f"a function from {radii.size} radii to {radii.size} numbers"
        got = "a NaN" if values.shape == radii.shape else f"shape {values.shape}"
        raise BadInput("gamma", expected=expected, got=got, fix="use array operations")
    return math.fsum(values.tolist()) / radii.size


def certified_at(threshold: float) -> Gamma:
    """gamma_1(r) = 1{r >= threshold}: certified accuracy at that radius.

    Definition 1 has gamma(0) = 1 at threshold 0, where even wrong answers count and the index is 1,
    whereas `certified_accuracy` at 0 counts correct ones only. They agree above 0.

    Example:
        >>> import sween
        >>> from sween.evaluation import certified_at, robustness_index
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> (accuracy,) = sween.certified_accuracy(certificates, [0.25])
        >>> robustness_index(certificates, certified_at(0.25)) == float(accuracy)
        True
    """
    check_radii([threshold])
    return lambda radii: (radii >= threshold).astype(np.float64)


def log_volume(radii: float | Floats, dimension: int) -> Floats:
    """log V = d/2 log(pi) - log Gamma(d/2 + 1) + d log r of l2 balls; -inf for radius 0.

    Example:
        >>> from sween.evaluation import log_volume
        >>> log_volume([1.0, 0.5], dimension=3072).round(1).tolist()
        [-7979.8, -10109.2]
    """
    radii = check_radii(np.atleast_1d(radii))
    if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
        fix = "pass channels x height x width"
        raise BadInput("dimension", expected="an int of at least 1", got=dimension, fix=fix)
    unit = dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2 + 1)
    with np.errstate(divide="ignore"):
        return np.asarray(unit + dimension * np.log(radii), dtype=np.float64)


def log_average_volume(
    certificates: Sequence[Certificate], dimension: int, *, radius: RadiusField = "radius"
) -> float:
    """The logarithm of the index with gamma_3, the mean certified volume; -inf without any.

    It never leaves log space. In the 3072 dimensions of a 3x32x32 image the largest radius decides
    nearly the whole mean.

    Example:
        >>> import sween
        >>> from sween.evaluation import log_average_volume
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> log_average_volume(certificates, dimension=64) < 0
        True
    """
    logs = log_volume(counted_radii(certificates, radius=radius).radii, dimension)
    return float(special.logsumexp(logs)) - math.log(logs.size)
