"""Certified accuracy and average certified radius, over all images.

Wrong and abstained images stay in the denominator everywhere: leaving them out would reward a
model for abstaining on hard images.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from sween.bounds.binomial import lower_bound, upper_bound
from sween.errors import BadInput, UnknownName
from sween.evaluation.groups import check_distinct_images
from sween.records import Certificate

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RadiusField = Literal["radius", "radius_cohen", "radius_two_class"]
"""Which of a certificate's radii to use: that of the bound asked for, or of a named bound."""

RADIUS_FIELDS: tuple[RadiusField, ...] = get_args(RadiusField)


class CountedRadii(NamedTuple):
    """What each image contributes.

    Attributes:
        radii: float64 (N,), 0 where wrong or abstained.
        certified: bool (N,), whether the image is certified with its true label. A correct answer
            may have radius exactly 0, which counts at radius 0; `radii` alone cannot tell.
    """

    radii: Floats
    certified: Bools


def counted_radii(
    certificates: Sequence[Certificate], *, radius: RadiusField = "radius"
) -> CountedRadii:
    """The radius that each image contributes, in the order given.

    With "radius" an image counts if its prediction is its label. With the radius of a named bound
    it counts if the candidate class is the label and that bound does not abstain (radius 0); the
    prediction belongs to the bound asked for and says nothing about another.

    Raises:
        BadInput: no certificates, an image twice, a missing label, or a radius that is null,
            negative or not finite.

    Example:
        >>> import sween
        >>> from sween.evaluation import counted_radii
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> counted_radii(certificates).radii.shape
        (2,)
    """
    if radius not in RADIUS_FIELDS:
        raise UnknownName("radius field", radius, RADIUS_FIELDS)
    _check(certificates)
    values = np.array([_radius_of(certificate, radius) for certificate in certificates])
    if radius == "radius":
        certified = np.array([certificate.correct for certificate in certificates])
    else:
        right = [certificate.candidate == certificate.label for certificate in certificates]
        certified = np.array(right) & (values > 0)
    return CountedRadii(np.where(certified, values, 0.0), certified)


def certified_accuracy(
    certificates: Sequence[Certificate],
    radii: Sequence[float] | Floats,
    *,
    radius: RadiusField = "radius",
) -> Floats:
    """Certified accuracy at each radius (Cohen et al. 2019).

    The fraction of ALL images that are classified correctly, without abstention, and certified at
    radius >= r. Wrong and abstained images count as not certified at any radius.

    Args:
        certificates: of one model, one per image, with labels.
        radii: l2 radii, in units of pixels scaled to [0,1].
        radius: which radius of the certificates to use.

    Returns:
        float64 array, as long as `radii`.

    Raises:
        BadInput: no certificates, an image twice, a missing label, or an impossible radius.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits").test
        >>> images, labels = digits.images(range(10)), digits.labels[:10]
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> certificates = smoothed.certify(images, labels=labels, n=500)
        >>> at_zero, at_ten = sween.certified_accuracy(certificates, [0.0, 10.0]).tolist()
        >>> at_zero > 0.5, at_ten
        (True, 0.0)
    """
    asked = check_radii(radii)
    counted = counted_radii(certificates, radius=radius)
    ordered = np.sort(counted.radii[counted.certified])
    reaching = ordered.size - np.searchsorted(ordered, asked, side="left")
    return np.asarray(reaching / len(certificates), dtype=np.float64)


def average_certified_radius(
    certificates: Sequence[Certificate], *, radius: RadiusField = "radius"
) -> float:
    """Average certified radius, ACR (Zhai et al. 2020).

    The mean radius over ALL images, where a wrong or abstained image counts as 0. It equals the
    area under the curve of certified accuracy against radius. The sum is exact, so the order of the
    certificates cannot change the last digit.

    Args:
        certificates: of one model, one per image, with labels.
        radius: which radius of the certificates to use.

    Raises:
        BadInput: no certificates, an image twice, a missing label, or an impossible radius.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits").test
        >>> images, labels = digits.images(range(10)), digits.labels[:10]
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> certificates = smoothed.certify(images, labels=labels, n=500)
        >>> 0.2 < sween.average_certified_radius(certificates) < 1
        True
    """
    radii = counted_radii(certificates, radius=radius).radii
    return math.fsum(radii.tolist()) / len(certificates)


class Share(NamedTuple):
    """A fraction of images with its confidence interval, each in [0,1].

    Example:
        See `share_of_images`.
    """

    value: float
    low: float
    high: float


def share_of_images(count: int, images: int, *, confidence: float = 0.95) -> Share:
    """`count` / `images` with its two-sided Clopper-Pearson interval.

    If the images are independent draws, the interval contains the fraction among all such images
    with probability at least `confidence`. It accounts for the choice of images alone, not for
    randomness in training or in the noise.

    Args:
        count: images that have the property, such as being certified at a radius.
        images: all images.
        confidence: strictly between 0 and 1.

    Example:
        >>> from sween.evaluation import share_of_images
        >>> share = share_of_images(450, 500)
        >>> print(f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})")
        90.0% (87.0% to 92.5%)
    """
    tail = (1 - confidence) / 2
    low, high = lower_bound(count, images, tail), upper_bound(count, images, tail)
    return Share(count / images, float(low), float(high))


def abstention_rate(certificates: Sequence[Certificate]) -> float:
    """The fraction of images on which the classifier abstains; needs no labels.

    Example:
        >>> import sween
        >>> from sween.evaluation import abstention_rate
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> abstention_rate(certificates)
        0.0
    """
    _check(certificates, labels=False)
    return sum(certificate.abstained for certificate in certificates) / len(certificates)


def check_radii(radii: Sequence[float] | Floats) -> Floats:
    """Radii as a float64 array; refuses an empty list, negative and non-finite numbers.

    Example:
        >>> from sween.evaluation import check_radii
        >>> check_radii([0, 0.25]).tolist()
        [0.0, 0.25]
        >>> check_radii([-1])
        Traceback (most recent call last):
            ...
        sween.errors.BadInput: radii: expected a non-empty list of finite numbers, none ...
    """
    asked = np.asarray(radii, dtype=np.float64)
    if asked.ndim != 1 or asked.size == 0 or not np.all(np.isfinite(asked)) or np.any(asked < 0):
        raise BadInput(
            "radii",
            expected="a non-empty list of finite numbers, none negative",
            got=list(radii) if asked.ndim == 1 else f"shape {asked.shape}",
            fix="try 0, 0.25, 0.5",
        )
    return asked


def _check(certificates: Sequence[Certificate], *, labels: bool = True) -> None:
    if not certificates:
        raise BadInput("certificates: expected at least one, got none; pass the rows of a run")
    check_distinct_images(certificates)
    unlabelled = [certificate.index for certificate in certificates if certificate.label is None]
    if labels and unlabelled:
        what, fix = f"label of index {unlabelled[0]}", "certify a labelled data set"
        raise BadInput(what, expected="a class for every image", got="none", fix=fix)


def _radius_of(certificate: Certificate, field: RadiusField) -> float:
    value: float | None = getattr(certificate, field)
    if value is None or not math.isfinite(value) or value < 0:
        raise BadInput(
            f"{field} of index {certificate.index}",
            expected="a finite number, at least 0",
            got="null" if value is None else value,
            fix='use radius="radius"' if value is None else "restore the file from its source",
        )
    return value
