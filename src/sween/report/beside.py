"""A run beside a published log, image by image.

The log's radii are intervals, because they were rounded when printed; so every number of the log
is an interval here, and no image is said to be certified further unless rounding cannot explain it.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from sween.errors import BadInput
from sween.evaluation import (
    RadiusField,
    average_certified_radius,
    certified_accuracy,
    check_distinct_images,
    check_radii,
    counted_radii,
    paired_bootstrap,
)
from sween.records import ABSTAIN, Certificate
from sween.report.classic import ClassicLog, ClassicRow
from sween.report.rows import DEFAULT_RADII


class Interval(NamedTuple):
    """From the smallest to the largest value that the printed log allows."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogComparison:
    """A model and a published log on the same images.

    Attributes:
        model: the model's name.
        log: the log's name.
        indices: the images compared, ascending.
        only_model: images of the model left out, since the log lacks them.
        only_log: images of the log left out.
        radii: where certified accuracy is judged, ascending.
        accuracies: the model's, one for each radius.
        log_accuracies: the log's.
        acr: the model's average certified radius.
        log_acr: the log's.
        difference: the model's ACR minus the log's, on these very images.
        bootstrap: the same for other images like these: a paired percentile bootstrap interval,
            wide enough for whatever the printed radii were rounded from.
        confidence: the bootstrap interval's nominal coverage.
        model_further: images that the model certifies further, by more than the rounding.
        log_further: images that the log certifies further, by more than the rounding.
        same_prediction: images with the same answer, abstentions included; None where the log
            keeps no predictions.
        sigma: the model's noise level.
        log_sigma: the log's, where somebody said it.
    """

    model: str
    log: str
    indices: tuple[int, ...]
    only_model: int
    only_log: int
    radii: tuple[float, ...]
    accuracies: tuple[float, ...]
    log_accuracies: tuple[Interval, ...]
    acr: float
    log_acr: Interval
    difference: Interval
    bootstrap: Interval
    confidence: float
    model_further: int
    log_further: int
    same_prediction: int | None
    sigma: float
    log_sigma: float | None = None

    @property
    def count(self) -> int:
        """Images compared."""
        return len(self.indices)

    @property
    def excludes_zero(self) -> bool:
        """Whether the bootstrap interval lies on one side of no difference."""
        return self.bootstrap.low > 0 or self.bootstrap.high < 0


def compare_with_log(
    certificates: Sequence[Certificate],
    log: ClassicLog,
    *,
    radii: Sequence[float] | None = None,
    common_only: bool = False,
    radius: RadiusField = "radius",
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> LogComparison:
    """Compare one model's certificates with a published log.

    The bootstrap interval is conservative: its lower limit takes the log's high ends, its upper
    limit the low ends, with the same draws of images, so it contains the interval that the
    unrounded radii would have given. It speaks of the choice of test images alone, not of training
    or certification randomness, nor of settings (n, alpha, sigma) that may differ.

    Args:
        certificates: one model's, with labels.
        log: what a reader of published logs returns.
        radii: where to judge certified accuracy; the paper's 0.00 to 2.00 by default.
        common_only: compare the common images where the two cover different ones, which is
            refused otherwise.
        radius: the certificate's field to judge; classic logs use Cohen's bound.
        resamples: bootstrap resamples, at least 1.
        confidence: strictly between 0 and 1.
        seed: the same seed gives the same interval.

    Raises:
        BadInput: different images, no common ones, or an image with two labels.
    """
    asked = sorted(set(check_radii(DEFAULT_RADII if radii is None else radii).tolist()))
    ours, rows = _paired(certificates, log, common_only)
    counted = counted_radii(ours, radius=radius)
    mine = _as_counted(ours, counted.certified.tolist(), counted.radii.tolist())
    right = [row.correct for row in rows]
    lows = _as_counted(ours, right, [row.low for row in rows])
    highs = _as_counted(ours, right, [row.high for row in rows])

    def against(theirs: Sequence[Certificate]) -> Interval:
        interval = paired_bootstrap(
            mine, theirs, resamples=resamples, confidence=confidence, seed=seed
        )
        return Interval(interval.low, interval.high)

    acr = average_certified_radius(mine)
    log_acr = Interval(average_certified_radius(lows), average_certified_radius(highs))
    accuracies = [certified_accuracy(side, asked).tolist() for side in (mine, lows, highs)]
    return LogComparison(
        model=ours[0].model,
        log=log.name,
        indices=tuple(certificate.index for certificate in ours),
        only_model=len(certificates) - len(ours),
        only_log=len(log.rows) - len(rows),
        radii=tuple(asked),
        accuracies=tuple(accuracies[0]),
        log_accuracies=tuple(Interval(*ends) for ends in zip(*accuracies[1:], strict=True)),
        acr=acr,
        log_acr=log_acr,
        difference=Interval(acr - log_acr.high, acr - log_acr.low),
        bootstrap=Interval(against(highs).low, against(lows).high),
        confidence=confidence,
        model_further=_further(mine, highs),
        log_further=_further(lows, mine),
        same_prediction=_same_predictions(ours, rows, radius),
        sigma=ours[0].sigma,
        log_sigma=log.sigma,
    )


def _paired(
    certificates: Sequence[Certificate], log: ClassicLog, common_only: bool
) -> tuple[list[Certificate], list[ClassicRow]]:
    """Both sides in the order of the images, the common ones only."""
    check_distinct_images(certificates)
    ours = {certificate.index: certificate for certificate in certificates}
    theirs = {row.index: row for row in log.rows}
    common = sorted(ours.keys() & theirs.keys())
    unshared = ours.keys() ^ theirs.keys()
    if not common or (unshared and not common_only):
        first = min(unshared)
        owner = "the certificates" if first in ours else "the log"
        raise BadInput(
            f"images of the certificates and of {log.name}",
            expected="the same in both",
            got=f"{len(common)} in common, {len(unshared)} not: index {first} only in {owner}",
            fix="certify the log's indices"
            + (", or pass common_only=True to compare the common ones" if common else ""),
        )
    for index in common:
        label, other = ours[index].label, theirs[index].label
        if label is not None and other is not None and label != other:
            raise BadInput(
                f"label of index {index}",
                expected=f"{label} as in the certificates",
                got=f"{other} in {log.name}",
                fix="compare on the same data set and split",
            )
    return [ours[index] for index in common], [theirs[index] for index in common]


def _as_counted(
    certificates: Sequence[Certificate], certified: Sequence[bool], radii: Sequence[float]
) -> list[Certificate]:
    """Certificates that hold what the averages need and no more: right or not, and how far."""
    counted = []
    for certificate, right, radius in zip(certificates, certified, radii, strict=True):
        assert certificate.label is not None, "counted_radii refuses it"
        prediction, reach = (certificate.label, radius) if right else (ABSTAIN, 0.0)
        counted.append(dataclasses.replace(certificate, prediction=prediction, radius=reach))
    return counted


def _further(first: Sequence[Certificate], second: Sequence[Certificate]) -> int:
    return sum(one.radius > other.radius for one, other in zip(first, second, strict=True))


def _same_predictions(
    certificates: Sequence[Certificate], rows: Sequence[ClassicRow], field: RadiusField
) -> int | None:
    if any(row.prediction is None for row in rows):
        return None
    answers = [answer_by(certificate, field) for certificate in certificates]
    return sum(answer == row.prediction for answer, row in zip(answers, rows, strict=True))


def answer_by(certificate: Certificate, field: RadiusField) -> int:
    """The class by that bound; `prediction` belongs to the bound that was asked for."""
    if field == "radius":
        return certificate.prediction
    return certificate.candidate if getattr(certificate, field) > 0 else ABSTAIN
