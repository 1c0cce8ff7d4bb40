"""The radius-accuracy curve, exact: one step at every certified radius, no grid."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sween.evaluation.accuracy import Floats, RadiusField, counted_radii
from sween.records import Certificate


@dataclasses.dataclass(frozen=True, eq=False)
class RadiusAccuracyCurve:
    """Certified accuracy as a function of the radius, a decreasing step function.

    It is accuracies[0] up to and including radii[0], accuracies[j] on (radii[j-1], radii[j]], and 0
    beyond the last radius: an image counts at its own radius.

    Attributes:
        radii: float64 (M,), strictly increasing; empty when nothing is certified.
        accuracies: float64 (M,), non-increasing.

    Example:
        See `radius_accuracy_curve`.
    """

    radii: Floats
    accuracies: Floats

    def at(self, radii: Sequence[float] | Floats) -> Floats:
        """The curve's value at each radius."""
        padded = np.append(self.accuracies, 0.0)
        return padded[np.searchsorted(self.radii, np.asarray(radii, np.float64), side="left")]

    @property
    def area(self) -> float:
        """Area under the curve, which equals the average certified radius."""
        return float(np.sum(np.diff(self.radii, prepend=0.0) * self.accuracies))

    def corners(self) -> tuple[Floats, Floats]:
        """Points from radius 0 down to accuracy 0, to draw with `where="pre"` steps."""
        start = self.accuracies[:1] if self.radii.size else np.zeros(1)
        end = self.radii[-1:]
        radii = np.concatenate([[0.0], self.radii, end])
        return radii, np.concatenate([start, self.accuracies, np.zeros(end.size)])


def radius_accuracy_curve(
    certificates: Sequence[Certificate], *, radius: RadiusField = "radius"
) -> RadiusAccuracyCurve:
    """The exact curve of one model over all its images.

    Args:
        certificates: of one model, one per image, with labels.
        radius: which radius of the certificates to use.

    Example:
        >>> import sween
        >>> from sween.evaluation import radius_accuracy_curve
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> images, labels = digits.images([1, 2]), digits.labels[1:3]
        >>> certificates = smoothed.certify(images, labels=labels, n=200)
        >>> curve = radius_accuracy_curve(certificates)
        >>> round(curve.area - sween.average_certified_radius(certificates), 9)
        0.0
    """
    counted = counted_radii(certificates, radius=radius)
    radii, images = np.unique(counted.radii[counted.certified], return_counts=True)
    reaching = np.cumsum(images[::-1])[::-1]
    return RadiusAccuracyCurve(radii, reaching / len(certificates))


def envelope_curve(curves: Sequence[RadiusAccuracyCurve]) -> RadiusAccuracyCurve:
    """The maximum of at least one curve at every radius.

    Its area is at least that of every curve, and larger than all of them where curves cross.

    Example:
        >>> import numpy as np
        >>> from sween.evaluation import RadiusAccuracyCurve, envelope_curve
        >>> low_noise = RadiusAccuracyCurve(np.array([0.25]), np.array([0.9]))
        >>> high_noise = RadiusAccuracyCurve(np.array([0.75]), np.array([0.6]))
        >>> envelope_curve([low_noise, high_noise]).at([0.2, 0.5]).tolist()
        [0.9, 0.6]
    """
    radii = np.unique(np.concatenate([curve.radii for curve in curves]))
    return RadiusAccuracyCurve(radii, np.max([curve.at(radii) for curve in curves], axis=0))
