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
    """
    counted = counted_radii(certificates, radius=radius)
    radii, images = np.unique(counted.radii[counted.certified], return_counts=True)
    reaching = np.cumsum(images[::-1])[::-1]
    return RadiusAccuracyCurve(radii, reaching / len(certificates))


def envelope_curve(curves: Sequence[RadiusAccuracyCurve]) -> RadiusAccuracyCurve:
    """The maximum of at least one curve at every radius.

    Its area is at least that of every curve, and larger than all of them where curves cross.
    """
    radii = np.unique(np.concatenate([curve.radii for curve in curves]))
    return RadiusAccuracyCurve(radii, np.max([curve.at(radii) for curve in curves], axis=0))
