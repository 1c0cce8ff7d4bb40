"""A run compared with a published log, image by image.

The log's radii are intervals, because they were rounded when printed. So every number of the log is
an interval here, and no radius is called larger unless rounding cannot explain it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sween.errors import BadInput
from sween.evaluation import RadiusField, bootstrap_interval, check_radii, counted_radii
from sween.records import ABSTAIN, Certificate, format_radius
from sween.report.measured import MeasuredRun
from sween.report.published_logs import CertificationLog, Interval
from sween.report.rows import DEFAULT_RADII
from sween.report.tables import (
    Cell,
    Column,
    Table,
    images_in_words,
    make_table,
    percentage,
    plain_number,
    rounded_outwards,
    signed,
    signed_interval,
    to_csv,
)


@dataclasses.dataclass(frozen=True)
class LogComparison:
    """A model and a published log on the same images.

    Attributes:
        model: the model's certificates; its intervals have equal ends.
        log: the published log, on the same images in the same order.
        radii: of the certified accuracies, ascending.
        left_out: how many images of the model and of the log the other lacks.
        bootstrap: 95% paired percentile bootstrap interval of the difference of their ACR, wide
            enough for whatever the printed radii were rounded from.
    """

    model: CertificationLog
    log: CertificationLog
    radii: list[float]
    left_out: tuple[int, int]
    bootstrap: Interval

    @property
    def difference(self) -> Interval:
        """The model's ACR minus the log's."""
        return Interval(
            self.model.acr.low - self.log.acr.high, self.model.acr.low - self.log.acr.low
        )

    @property
    def larger(self) -> tuple[int, int]:
        """On how many images the model, and the log, has the larger radius beyond rounding."""
        (mine, _), (low, high) = self.model.counted, self.log.counted
        return int(np.sum(mine > high)), int(np.sum(low > mine))

    @property
    def same_prediction(self) -> int | None:
        """Images with the same prediction or abstention; None where the log has none."""
        if self.log.predictions is None:
            return None
        return int(np.sum(self.model.predictions == self.log.predictions))

    def to_csv(self) -> str:
        """Image by image."""
        ours, log, nothing = self.model, self.log, [None] * self.model.indices.size
        arrays = {
            "index": ours.indices,
            "label": ours.labels,
            "prediction": ours.predictions,
            "radius": ours.low,
            "log_prediction": log.predictions,
            "log_correct": log.correct.astype(int),
            "log_radius_low": log.low,
            "log_radius_high": log.high,
        }
        lists = [nothing if array is None else array.tolist() for array in arrays.values()]
        records = [dict(zip(arrays, values, strict=True)) for values in zip(*lists, strict=True)]
        return to_csv(make_table("images", "", [Column(name, name) for name in arrays], records))


def compare_logs(
    runs: Sequence[MeasuredRun],
    logs: Sequence[CertificationLog],
    *,
    radii: Sequence[float] | None,
    common_only: bool,
) -> list[tuple[str, LogComparison]]:
    """Each log compared with the main model of every run on its images, with a name for its file.

    Where `common_only`, runs and logs on different images are compared on the common ones.
    """
    found = list[tuple[str, LogComparison]]()
    for log in logs:
        indices, before = set(log.indices.tolist()), len(found)
        for run in runs:
            fits = indices & set(run.indices) if common_only else indices == set(run.indices)
            if fits and log.sigma in (None, run.sample.sigma):
                rows = run.models[run.ensemble or next(iter(run.models))]
                cohen = all(row.radius_cohen is not None for row in rows)  # as published logs have
                field: RadiusField = "radius_cohen" if cohen else "radius"
                name = f"beside-{log.name}-{run.name}"
                compared = compare_with_log(
                    rows, log, radii=radii, common_only=common_only, radius=field
                )
                found.append((name, compared))
        if len(found) == before:
            at = "" if log.sigma is None else f" at its sigma, {log.sigma:g}"
            raise BadInput(
                log.name,
                expected=f"a run on the images of the log{at}",
                got=f"{images_in_words(sorted(indices))} in the log, and no run on them",
                fix="certify those images, or pass `different_images=True` to compare common ones",
            )
    return found


def compare_with_log(
    certificates: Sequence[Certificate],
    log: CertificationLog,
    *,
    radii: Sequence[float] | None = None,
    common_only: bool = False,
    radius: RadiusField = "radius",
) -> LogComparison:
    """Compare one model's certificates with a published log on the same images.

    The bootstrap accounts for the choice of test images alone, not for randomness in training or
    certification, nor for settings (n, alpha, sigma) that may differ.

    Args:
        certificates: of one model, with labels.
        log: the published log.
        radii: of the certified accuracies; the paper's 0.00 to 2.00 by default.
        common_only: compare the common images; different ones are refused otherwise.
        radius: which radius of the certificates to use.
    """
    asked = np.unique(check_radii(DEFAULT_RADII if radii is None else radii)).tolist()
    ours = _as_log(certificates, radius)
    common, mine, theirs = np.intersect1d(ours.indices, log.indices, return_indices=True)
    unshared = np.setxor1d(ours.indices, log.indices)
    if not common.size or (unshared.size and not common_only):
        owner = "the certificates" if unshared[0] in ours.indices else "the log"
        first = f"index {unshared[0]} only in {owner}"
        raise BadInput(
            f"images of the certificates and of {log.name}",
            expected="the same in both",
            got=f"{common.size} in common, {unshared.size} not: {first}",
            fix="certify the log's indices" + (", or pass common_only=True" if common.size else ""),
        )
    left_out = ours.indices.size - common.size, log.indices.size - common.size
    ours, log = ours.at(mine), log.at(theirs)
    if ours.labels is not None and log.labels is not None and np.any(ours.labels != log.labels):
        place = np.argmax(ours.labels != log.labels)
        raise BadInput(
            f"label of index {common[place]}",
            expected=f"{ours.labels[place]} as in the certificates",
            got=f"{log.labels[place]} in {log.name}",
            fix="compare on the same data set and split",
        )
    low, high = (
        bootstrap_interval(ours.counted[0] - ends, resamples=10_000, confidence=0.95, seed=0)
        for ends in log.counted
    )
    return LogComparison(ours, log, asked, left_out, Interval(high[0], low[1]))


def _as_log(certificates: Sequence[Certificate], radius: RadiusField) -> CertificationLog:
    """One model's certificates; by a named bound, which may abstain where that asked for does not,
    the prediction is the candidate class."""
    certified = counted_radii(certificates, radius=radius).certified
    radii = np.array([getattr(row, radius) for row in certificates], dtype=np.float64)
    if radius == "radius":
        predictions = np.array([row.prediction for row in certificates])
    else:
        predictions = np.where(radii > 0, [row.candidate for row in certificates], ABSTAIN)
    return CertificationLog(
        certificates[0].model,
        indices=np.array([row.index for row in certificates]),
        correct=certified,
        low=radii,
        high=radii,
        labels=np.array([row.label for row in certificates]),
        predictions=predictions,
        sigma=certificates[0].sigma,
    )


def log_table(one: LogComparison) -> Table:
    """Both in a table: percentages, radii rounded outwards; sorted by the middle of an interval."""
    headings = [*map(plain_number, one.radii), "ACR", "larger on"]
    columns = [Column("Model", "Model"), *(Column(own, own, str) for own in headings)]
    names = one.model.name, f"{one.log.name} (log)"
    rows = []
    for side, name, larger in zip((one.model, one.log), names, one.larger, strict=True):
        shares = [side.accuracy(radius) for radius in one.radii]
        cells = [Cell(_span(*map(percentage, ends)), sum(ends) / 2) for ends in shares]
        acr = format_radius(side.acr.low)
        if side.acr.low < side.acr.high:
            acr += f" to {rounded_outwards(*side.acr)[1]:.3f}"
        cells += [Cell(acr, sum(side.acr) / 2), Cell(f"{larger:,}", larger)]
        rows.append({"Model": Cell(name, side.name)} | dict(zip(headings, cells, strict=True)))
    title = f"{one.model.name} compared with {one.log.name}"
    return make_table("beside", title, columns, rows, notes=_notes(one))


def _notes(one: LogComparison) -> list[str]:
    """The comparison in words; first, if any, which images are left out."""
    model, log, indices, difference = one.model, one.log, one.model.indices, one.difference
    gap = signed(difference.low)
    if difference.low < difference.high:
        ends = signed_interval(*difference, between=" and ")
        gap = f"between {ends}, depending on the rounding of its radii"
    verdict = "excludes" if one.bootstrap.low > 0 or one.bootstrap.high < 0 else "includes"
    agreement = "the log has no predictions to compare"
    if one.same_prediction is not None:
        share = percentage(one.same_prediction / indices.size)
        agreement = f"their predictions agree on {one.same_prediction:,} ({share}%)"
    sigma = "not stated" if log.sigma is None else f"given as {log.sigma:g}"
    said = (
        f"On {indices.size:,} common images (indices {indices[0]}..{indices[-1]}) the ACR of "
        f"{model.name} minus that of the log is {gap}. The 95% paired bootstrap interval, rounding "
        f"included, is {signed_interval(*one.bootstrap)}, which {verdict} zero. Beyond rounding, "
        f"{model.name} has the larger radius on {one.larger[0]:,} images and the log on "
        f"{one.larger[1]:,}; {agreement}. The noise level of {model.name} is "
        f"{plain_number(model.sigma or 0)}; that of the log is {sigma}."
    )
    left_out = f"{one.left_out[0]:,} of {model.name} and {one.left_out[1]:,} of the log"
    return [f"Common images only: {left_out} are left out.", said] if any(one.left_out) else [said]


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
