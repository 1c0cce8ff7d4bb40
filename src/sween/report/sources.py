"""The input of `sween report`: folders of runs, published logs, and the images behind them."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sween.attack import outcomes_file
from sween.data import DATASETS, Dataset, as_dataset, as_image_set, load_dataset
from sween.data.splits import listed_classes
from sween.errors import BadInput, DataError, UnknownName, refuse_duplicates
from sween.paths import AnyPath
from sween.report.attacked import AttackedRun, load_attacked
from sween.report.measured import MeasuredRun, load_run
from sween.report.published_logs import (
    CertificationLog,
    Votes,
    largest_radius,
    read_macer_log,
    read_tsv_log,
)
from sween.runs import TrainingRun


@dataclasses.dataclass(frozen=True)
class Sources:
    """The input of a report, read and checked, by kind."""

    runs: Sequence[MeasuredRun]
    attacked: Sequence[AttackedRun]
    trained: Sequence[TrainingRun]
    logs: Sequence[CertificationLog]


MOST_VOTES = 1_000_000
"""Assumed behind the radii of published logs: usually 100,000, but some have larger radii."""


@dataclasses.dataclass(frozen=True)
class LogFormat:
    """What published logs do not say themselves.

    Attributes:
        significant_digits: of their printed radii, where trailing zeros were dropped; None takes
            the digits as printed.
        start: index of the first image of a MACER .mat file.
        skip: its step from image to image.
        votes: which of its radii, those of hard or of soft votes.
        sigma: noise level; the first reported run's by default, as is alpha. Radii that are
            impossible at sigma, n and alpha are refused.
        n: votes behind a radius; by default MOST_VOTES, or the run's if it has more.
        alpha: failure probability of a certificate.

    Example:
        >>> from sween.report import LogFormat
        >>> LogFormat(significant_digits=3, sigma=0.5, n=100_000, alpha=0.001).limit(None) < 2
        True
    """

    significant_digits: int | None = None
    start: int | None = None
    skip: int = 1
    votes: Votes = "hard"
    sigma: float | None = None
    n: int | None = None
    alpha: float | None = None

    def limit(self, run: MeasuredRun | None) -> float:
        """The largest possible radius, with unset values taken from a run; infinite if unknown."""
        sigma, n, alpha = self.sigma, self.n, self.alpha
        if run is not None:
            sigma = run.sample.sigma if sigma is None else sigma
            n = max(MOST_VOTES, run.config.settings.n) if n is None else n
            alpha = run.sample.alpha if alpha is None else alpha
        if sigma is None or n is None or alpha is None:
            return math.inf
        return largest_radius(sigma=sigma, n=n, alpha=alpha)


def read_sources(
    paths: Sequence[Path], *, radii: Sequence[float] | None, log_format: LogFormat | None = None
) -> Sources:
    """Read and check everything; nothing is written before all of it is known to be good."""
    log_format = log_format or LogFormat()
    runs, attacked, trained = [], [], []
    for path in (path for path in paths if not path.is_file()):
        if outcomes_file(path) is not None:
            attacked.append(load_attacked(path))
        elif TrainingRun.is_at(path):
            trained.append(TrainingRun.read(path))
        else:
            runs.append(load_run(path, radii=radii))
    limit = log_format.limit(runs[0] if runs else None)
    logs = [
        dataclasses.replace(_read_log(path, log_format, limit), sigma=log_format.sigma)
        for path in paths
        if path.is_file()
    ]
    names = [run.name for run in runs] + [attack.name for attack in attacked]
    refuse_duplicates("folders", names, fix="rename one: its figures and rows are named after it")
    refuse_duplicates(
        "logs", [log.name for log in logs], fix="rename one: its file is named after it"
    )
    return Sources(runs, attacked, trained, logs)


def _read_log(path: Path, log_format: LogFormat, limit: float) -> CertificationLog:
    if path.suffix != ".mat":
        digits = log_format.significant_digits
        return read_tsv_log(path, significant_digits=digits, limit=limit)
    if log_format.start is None:
        raise BadInput(
            f"{path}: expected the index of the first image of a .mat file, got none; pass "
            "`LogFormat.start`; MACER's code starts at 500 by default"
        )
    start, skip = log_format.start, log_format.skip
    return read_macer_log(path, start=start, skip=skip, votes=log_format.votes, limit=limit)


def check_same_images(runs: Sequence[MeasuredRun]) -> None:
    """Refuse runs of one data set on different images: a reader would compare their tables."""
    known: dict[str, MeasuredRun] = {}
    for run in runs:
        other = known.setdefault(run.dataset, run)
        known_of_other = other.config.fingerprints
        found = [
            f"{name} {own}, not {known_of_other[name]}"
            for name, own in run.config.fingerprints.items()
            if own != known_of_other.get(name, own)
        ]
        if run.indices != other.indices:
            lone = min({*run.indices} ^ {*other.indices})
            found = [f"image {lone} in only one of them"]
        if found:
            raise BadInput(
                f"images of {run.name}: expected those of {other.name}, got {found[0]}; report "
                "them separately, or pass `different_images=True`"
            )


def read_datasets(
    runs: Sequence[MeasuredRun], root: AnyPath | None, given: Mapping[str, object] | None = None
) -> dict[str, Dataset]:
    """By the run's name, the data sets whose images can be shown.

    These are the data sets that are given by their names, need no files or have them under the
    root. Only the images that were certified are shown: a run on other pixels is refused. One root
    cannot hold the files of two data sets: where it has those of one, runs on others are shown
    without images.
    """
    found, missing = dict[str, Dataset](), list[DataError]()
    loaded, given = dict[str, Dataset](), given or {}
    for name in given:
        if name not in (names := sorted({run.dataset for run in runs})):
            raise UnknownName("data set of the runs", name, names)
    for run in runs:
        if run.dataset in given:
            own = _as_certified(run, given[run.dataset])
            if own.image_shape[0] in (1, 3):  # grey or colours
                found[run.name] = own
            continue
        entry = DATASETS.get(run.dataset)
        if entry is None or (entry.needs_root and root is None):
            continue
        options = run.config.image_options if entry.reads_files else {}
        if options is None:
            continue
        key = f"{run.dataset} {options}"
        if key not in loaded:
            try:
                loaded[key] = load_dataset(run.dataset, root, test_only=True, **options)
            except DataError as error:
                missing.append(error)
                continue
        _check_pixels(run, loaded[key])
        found[run.name] = loaded[key]
    if missing and not any(DATASETS[dataset.name].needs_root for dataset in found.values()):
        raise missing[0]
    return found


def _as_certified(run: MeasuredRun, data: object) -> Dataset:
    """A caller's data set, whose images must be those that the run certified."""
    if not isinstance(data, Dataset):
        images = as_image_set(data, name=run.dataset, indices=run.indices, quiet=True)
        names = listed_classes(data) or None
        data = as_dataset(images, images, name=run.dataset, class_names=names, test_only=True)
    _check_pixels(run, data)
    return data


def _check_pixels(run: MeasuredRun, dataset: Dataset) -> None:
    test = dataset.test
    if run.indices[-1] >= len(test):
        raise BadInput(
            f"indices of {run.name}: expected less than {len(test)}, the number of test images of "
            f"{dataset.name}, got {run.indices[-1]}; restore the folder from its source"
        )
    here: dict[str, Callable[[], str | None]] = {
        "data": test.pixels.fingerprint,
        "labels": test.label_fingerprint,
        "contents": lambda: test.pixels.contents(run.indices),
    }
    for key, certified in run.config.fingerprints.items():
        if (found := here[key]()) != certified:
            raise BadInput(
                f"{'labels' if key == 'labels' else 'test images'} of {run.dataset}",
                expected=f"those that {run.name} certified ({key} {certified})",
                got=found,
                fix="pass the data set or the `data_root` that it was certified with",
            )
