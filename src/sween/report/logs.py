"""Published logs beside the runs of a report."""

import csv
import dataclasses
import io
import itertools
from collections.abc import Sequence

from sween.errors import BadInput
from sween.evaluation import RadiusField
from sween.records import Certificate
from sween.report.beside import LogComparison, answer_by, compare_with_log
from sween.report.classic import ClassicLog
from sween.report.measured import MeasuredRun
from sween.report.sources import Sources

_COLUMNS = (
    *("index", "label", "prediction", "radius"),
    *("log_prediction", "log_correct", "log_radius_low", "log_radius_high"),
)


@dataclasses.dataclass(frozen=True)
class BesideLog:
    """A run beside a log, and all their images as CSV."""

    compared: LogComparison
    images: str


def beside_logs(
    sources: Sources, *, radii: Sequence[float] | None, common_only: bool
) -> dict[str, BesideLog]:
    """Each log beside the main model of every run on the same images.

    Args:
        sources: of the report.
        radii: where certified accuracy is judged.
        common_only: compare the images that both have, where they have different ones.

    Returns:
        By a name for its file.
    """
    found = {}
    for log in sources.logs:
        indices = {row.index for row in log.rows}
        matching = [
            run
            for run in sources.runs
            if _fits(run, indices, common_only) and log.sigma in (None, run.sample.sigma)
        ]
        if not matching:
            raise BadInput(
                log.name,
                expected="a run on the images of the log" + _at(log.sigma),
                got=f"{images_in_words(sorted(indices))} in the log, and no run on them",
                fix="certify those images, or pass --different-images to compare common ones",
            )
        for run in matching:
            model = run.ensemble or next(iter(run.models))
            radius = _cohen_if_known(run, model)
            rows = run.models[model]
            compared = compare_with_log(
                rows, log, radii=radii, radius=radius, common_only=common_only
            )
            name = f"beside-{log.name}-{run.name}"
            if name in found:
                raise BadInput(
                    f"file {name}.csv",
                    expected="one log and run of that name",
                    got="two",
                    fix="rename a log or a folder",
                )
            found[name] = BesideLog(compared, _image_by_image(rows, log, radius))
    return found


def _at(sigma: float | None) -> str:
    return "" if sigma is None else f" at its sigma, {sigma:g}"


def _fits(run: MeasuredRun, indices: set[int], common_only: bool) -> bool:
    own = set(run.indices)
    return bool(own & indices) if common_only else own == indices


def _cohen_if_known(run: MeasuredRun, model: str) -> RadiusField:
    """Published logs have Cohen's radius."""
    known = all(row.radius_cohen is not None for row in run.models[model])
    return "radius_cohen" if known else "radius"


def _image_by_image(rows: Sequence[Certificate], log: ClassicLog, radius: RadiusField) -> str:
    theirs = {row.index: row for row in log.rows}
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        other = theirs.get(row.index)
        if other is not None:
            ours = (row.index, row.label, answer_by(row, radius), getattr(row, radius))
            writer.writerow((*ours, other.prediction, int(other.correct), other.low, other.high))
    return stream.getvalue()


def images_in_words(indices: Sequence[int]) -> str:
    """How many images and which: a number means little without the subset it was measured on."""
    if len(indices) == 1:
        return f"1 image at index {indices[0]}"
    steps = {after - before for before, after in itertools.pairwise(indices)}
    text = f"{len(indices):,} images at indices {indices[0]}..{indices[-1]}"
    if steps == {1}:
        return text
    return f"{text}, every {steps.pop()}" if len(steps) == 1 else f"{text}, with gaps"
