"""Certified accuracy and average certified radius, over all images.

Wrong and abstained images stay in the denominator everywhere: leaving them out would reward a
model for declining the images it finds hard.
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
"""Which of a certificate's radii to judge: by the bound asked for, or by one bound by name."""

RADIUS_FIELDS: tuple[RadiusField, ...] = get_args(RadiusField)


class CountedRadii(NamedTuple):
    """What each image contributes.

    Attributes:
        radii: float64 (N,), 0 where wrong or abstained.
        certified: bool (N,), whether the image is right and certified; a right answer with radius
            exactly 0 is certified at radius 0, which `radii` alone cannot tell.
    """

    radii: Floats
    certified: Bools


def counted_radii(
    certificates: Sequence[Certificate], *, radius: RadiusField = "radius"
) -> CountedRadii:
    """The radius with which each image counts, in the order given.

    For "radius" an image counts where its prediction is its label. For the radius of a named bound
    it counts where the candidate class is the label and that bound does not abstain, which it
    records as radius 0; the prediction says nothing there, as it belongs to the bound asked for.

    Raises:
        BadInput: no certificates, an image twice, a missing label, a radius that is null, negative
            or not finite.
    """
    _check(certificates, radius)
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
    """Approximate certified accuracy (Cohen et al. 2019) at each radius.

    The fraction of ALL images that are right, not abstained and certified at radius >= r.

    Args:
        certificates: one model's, one for each image, with labels. Their seeds may differ.
        radii: l2 radii in the units of [0,1] images.
        radius: the certificate's field to judge.

    Returns:
        float64 array, as long as `radii`.
    """
    asked = check_radii(radii)
    counted = counted_radii(certificates, radius=radius)
    ordered = np.sort(counted.radii[counted.certified])
    reaching = ordered.size - np.searchsorted(ordered, asked, side="left")
    return np.asarray(reaching / len(certificates), dtype=np.float64)


def average_certified_radius(
    certificates: Sequence[Certificate], *, radius: RadiusField = "radius"
) -> float:
    """ACR (Zhai et al. 2020): the mean over ALL images of the radius, 0 where wrong or abstained.

    It is also the area under the radius-accuracy curve. The sum is exact, so the order of the rows
    cannot change the last digit.
    """
    radii = counted_radii(certificates, radius=radius).radii
    return math.fsum(radii.tolist()) / len(certificates)


class Share(NamedTuple):
    """A share of images with its confidence interval, fractions in [0,1]."""

    value: float
    low: float
    high: float


def share_of_images(count: int, images: int, *, confidence: float = 0.95) -> Share:
    """The share `count` of `images` with its two-sided Clopper-Pearson interval.

    Where images are drawn independently, the interval contains the share among all images like
    them with probability at least `confidence`. It speaks of the choice of images alone, not of
    training or of the noise.

    Args:
        count: images that have the property, such as being certified at a radius.
        images: all images.
        confidence: strictly between 0 and 1.
    """
    tail = (1 - confidence) / 2
    low, high = lower_bound(count, images, tail), upper_bound(count, images, tail)
    return Share(count / images, float(low), float(high))


def clean_accuracy(certificates: Sequence[Certificate], *, radius: RadiusField = "radius") -> float:
    """The fraction of ALL images answered rightly: the certified accuracy at radius 0."""
    return float(np.mean(counted_radii(certificates, radius=radius).certified))


def abstention_rate(
    certificates: Sequence[Certificate], *, radius: RadiusField = "radius"
) -> float:
    """The fraction of images that the bound declines to answer; needs no labels."""
    _check(certificates, radius, labels=False)
    if radius == "radius":
        return sum(certificate.abstained for certificate in certificates) / len(certificates)
    radii = [_radius_of(certificate, radius) for certificate in certificates]
    return sum(value == 0 for value in radii) / len(certificates)


def check_radii(radii: Sequence[float] | Floats) -> Floats:
    """Radii to judge at, as a float64 array; refuses an empty, negative or non-finite list."""
    asked = np.asarray(radii, dtype=np.float64)
    if asked.ndim != 1 or asked.size == 0 or not np.all(np.isfinite(asked)) or np.any(asked < 0):
        raise BadInput(
            "radii",
            expected="a non-empty list of finite numbers, none negative",
            got=list(radii) if asked.ndim == 1 else f"shape {asked.shape}",
            fix="try 0, 0.25, 0.5",
        )
    return asked


def _check(certificates: Sequence[Certificate], radius: str, *, labels: bool = True) -> None:
    if radius not in RADIUS_FIELDS:
        raise UnknownName("radius field", radius, RADIUS_FIELDS)
    if not certificates:
        raise BadInput(
            "certificates", expected="at least one", got="none", fix="pass the rows of a run"
        )
    check_distinct_images(certificates)
    unlabelled = [certificate.index for certificate in certificates if certificate.label is None]
    if labels and unlabelled:
        raise BadInput(
            f"label of index {unlabelled[0]}",
            expected="a class for every image",
            got="none",
            fix="certify a labelled data set",
        )


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
