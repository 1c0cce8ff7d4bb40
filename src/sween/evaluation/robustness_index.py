"""The paper's gamma-robustness index: the mean of gamma(certified radius) (Definition 1).

Proposition 1 names three choices of gamma: certified accuracy, average certified radius and the
average volume of the certified region. Wrong and abstained images have radius 0, so they count
with gamma(0).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sween.errors import BadInput
from sween.evaluation.accuracy import Floats, RadiusField, counted_radii
from sween.records import Certificate

Gamma = Callable[[Floats], Floats]
"""A function of radii, float64 (N,) to float64 (N,), applied image by image."""


@dataclasses.dataclass(frozen=True)
class CertifiedAt:
    """gamma_1(r) = 1{r >= threshold}: certified accuracy at that radius.

    At threshold 0 Definition 1 gives gamma(0) = 1, so every image counts, even a wrong one, and
    the index is 1; `certified_accuracy` at 0 counts the right ones only. They agree above 0.
    """

    threshold: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold >= 0):
            raise BadInput(
                "threshold",
                expected="a finite radius, at least 0",
                got=self.threshold,
                fix="try 0.5",
            )

    def __call__(self, radii: Floats) -> Floats:
        return (radii >= self.threshold).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Radius:
    """gamma_2(r) = r: the average certified radius."""

    def __call__(self, radii: Floats) -> Floats:
        return radii


@dataclasses.dataclass(frozen=True)
class Volume:
    """gamma_3(r): the volume of an l2 ball of radius r.

    A float64 holds this for small dimensions only: the unit ball of a 32x32 colour image has a
    volume of about 1e-3466, which becomes 0. Use `log_average_volume` for images.
    """

    dimension: int

    def __post_init__(self) -> None:
        _check_dimension(self.dimension)

    def __call__(self, radii: Floats) -> Floats:
        return np.exp(_log_volumes(radii, self.dimension))


GAMMAS: Mapping[str, Callable[..., Gamma]] = {
    "certified-at": CertifiedAt,
    "radius": Radius,
    "volume": Volume,
}
"""The three choices of Proposition 1 by name; each makes a gamma from its own parameters."""


def robustness_index(
    certificates: Sequence[Certificate], gamma: Gamma, *, radius: RadiusField = "radius"
) -> float:
    """The gamma-robustness index of a model on its certified images.

    An empirical mean over the images at hand, of certified lower bounds on the true radii: where
    gamma is non-decreasing it understates the index of Definition 1 up to the sampling of images.

    Args:
        certificates: one model's, one for each image, with labels.
        gamma: any function of an array of radii that returns as many numbers.
        radius: the certificate's field to judge.
    """
    radii = counted_radii(certificates, radius=radius).radii
    values = np.asarray(gamma(radii), dtype=np.float64)
    if values.shape != radii.shape or np.any(np.isnan(values)):
        raise BadInput(
            "gamma",
            expected=f"a function returning {radii.size} numbers for {radii.size} radii",
            got="a NaN" if values.shape == radii.shape else f"shape {values.shape}",
            fix="write it with array operations, element by element",
        )
    return math.fsum(values.tolist()) / radii.size


def log_volume(radius: float, dimension: int) -> float:
    """Natural logarithm of the volume of an l2 ball; -inf for radius 0.

    log V = d/2 log(pi) - log Gamma(d/2 + 1) + d log r.
    """
    _check_dimension(dimension)
    if not (math.isfinite(radius) and radius >= 0):
        raise BadInput("radius", expected="a finite number, at least 0", got=radius, fix="try 0.5")
    return float(_log_volumes(np.array([radius]), dimension)[0])


def log_average_volume(
    certificates: Sequence[Certificate], dimension: int, *, radius: RadiusField = "radius"
) -> float:
    """Natural logarithm of the gamma_3-robustness index, the mean certified volume.

    Computed without leaving log space: at d = 3072 the volumes themselves under- and overflow. In
    so many dimensions the image with the largest radius decides nearly the whole mean.

    Args:
        certificates: one model's, one for each image, with labels.
        dimension: numbers in an image, 3072 for 3x32x32.
        radius: the certificate's field to judge.

    Returns:
        The logarithm; -inf where no image is certified with a positive radius.
    """
    _check_dimension(dimension)
    logs = _log_volumes(counted_radii(certificates, radius=radius).radii, dimension)
    largest = float(logs.max())
    if largest == -math.inf:
        return -math.inf
    total = math.fsum(np.exp(logs - largest).tolist())
    return largest + math.log(total) - math.log(logs.size)


def _check_dimension(dimension: int) -> None:
    if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
        raise BadInput(
            "dimension",
            expected="a whole number, at least 1",
            got=dimension,
            fix="pass channels x height x width",
        )


def _log_volumes(radii: Floats, dimension: int) -> Floats:
    unit = dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2 + 1)
    with np.errstate(divide="ignore"):  # log(0) = -inf is the answer for radius 0
        return np.asarray(unit + dimension * np.log(radii), dtype=np.float64)
