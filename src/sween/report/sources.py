"""What `sween report` is given: folders of runs, and published logs."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.attack import outcomes_file
from sween.data import DATASETS, Dataset, load_dataset
from sween.errors import BadInput, DataError, refuse_doubles
from sween.paths import AnyPath
from sween.report.attacked import AttackedRun, load_attacked
from sween.report.cost import TrainedRun, load_trained, metrics_file
from sween.report.measured import MeasuredRun, load_run
from sween.report.published_logs import (
    CertificationLog,
    Votes,
    largest_radius,
    read_macer_log,
    read_tsv_log,
)
from sween.run_folder import read_config


@dataclasses.dataclass(frozen=True)
class Sources:
    """Everything that was read and checked, by kind."""

    runs: Sequence[MeasuredRun]
    attacked: Sequence[AttackedRun]
    trained: Sequence[TrainedRun]
    logs: Sequence[CertificationLog]


MOST_VOTES = 1_000_000
"""Behind the radii of published logs: 100,000 as a rule, but some have radii that need more."""


@dataclasses.dataclass(frozen=True)
class LogFormat:
    """What published logs do not say themselves.

    Attributes:
        significant_digits: of their printed radii, where trailing zeros were dropped; None takes
            the digits that are printed.
        start: the first image of a MACER .mat file.
        skip: its step from image to image.
        votes: which of its radii, those of hard or of soft votes.
        sigma: noise level; radii that no votes can give at these three are refused. Where left
            open, those of the first run that is reported too.
        n: votes behind a radius; where left open MOST_VOTES, or those of the run if it has more.
        alpha: failure probability of a certificate.
    """

    significant_digits: int | None = None
    start: int | None = None
    skip: int = 1
    votes: Votes = "hard"
    sigma: float | None = None
    n: int | None = None
    alpha: float | None = None

    def filled(self, run: MeasuredRun | None) -> "LogFormat":
        """With what is left open taken from a run."""
        if run is None:
            return self
        votes = run.config.get("n")
        return dataclasses.replace(
            self,
            sigma=run.sample.sigma if self.sigma is None else self.sigma,
            n=max(MOST_VOTES, votes if isinstance(votes, int) else 0) if self.n is None else self.n,
            alpha=run.sample.alpha if self.alpha is None else self.alpha,
        )

    @property
    def limit(self) -> float:
        """The largest radius that these settings allow; infinite where they are not known."""
        if self.sigma is None or self.n is None or self.alpha is None:
            return math.inf
        return largest_radius(sigma=self.sigma, n=self.n, alpha=self.alpha)


def read_sources(
    paths: Sequence[Path], *, radii: Sequence[float] | None, log_format: LogFormat | None = None
) -> Sources:
    """Read and check everything; nothing is written before all of it is known to be good."""
    runs, attacked, trained = [], [], []
    for path in paths:
        if path.is_file():
            continue
        if outcomes_file(path) is not None:
            attacked.append(load_attacked(path))
        elif metrics_file(path) is not None and "arch" in read_config(path):
            trained.append(load_trained(path))
        else:
            runs.append(load_run(path, radii=radii))
    wanted = (log_format or LogFormat()).filled(runs[0] if runs else None)
    logs = [_read_log(path, wanted) for path in paths if path.is_file()]
    said = log_format.sigma if log_format is not None else None
    logs = [dataclasses.replace(log, sigma=said) for log in logs]
    names = [run.name for run in runs] + [attack.name for attack in attacked]
    refuse_doubles("folders", names, fix="rename one: the name labels its figures and its rows")
    refuse_doubles("logs", [log.name for log in logs], fix="rename one: the name labels its file")
    return Sources(runs, attacked, trained, logs)


def _read_log(path: Path, log_format: LogFormat) -> CertificationLog:
    if path.suffix != ".mat":
        return read_tsv_log(
            path, significant_digits=log_format.significant_digits, limit=log_format.limit
        )
    if log_format.start is None:
        raise BadInput(
            str(path),
            expected="--log-start, the test image that a .mat file begins with",
            got="none",
            fix="MACER's code begins with 500 by default",
        )
    return read_macer_log(
        path,
        start=log_format.start,
        skip=log_format.skip,
        votes=log_format.votes,
        limit=log_format.limit,
    )


def check_same_images(runs: Sequence[MeasuredRun]) -> None:
    """Refuse runs of one data set on different images: their tables invite to compare them."""
    known: dict[str, MeasuredRun] = {}
    for run in runs:
        other = known.setdefault(run.dataset, run)
        differ = any(
            len({one.config.get(name) for one in (run, other)} - {None}) > 1
            for name in ("data", "labels", "contents")
        )
        if run.indices != other.indices or differ:
            raise BadInput(
                f"images of {run.name}",
                expected=f"those of {other.name}",
                got="others",
                fix="report them apart, or pass --different-images",
            )


def read_datasets(runs: Sequence[MeasuredRun], root: AnyPath | None) -> dict[str, Dataset]:
    """By the run's name, the data sets whose images can be shown.

    Those that need no files, or whose files are here. Only the very images that were certified are
    shown: a run that names other pixels is refused. One root cannot hold the files of two data
    sets: where it has those of one, the runs of others go without images.
    """
    found, missing = dict[str, Dataset](), list[DataError]()
    loaded = dict[str, Dataset]()
    for run in runs:
        entry = DATASETS.get(run.dataset)
        if entry is None or (entry.needs_root and root is None):
            continue
        options = _options(run) if entry.reads_files else {}
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


def _options(run: MeasuredRun) -> dict[str, Any] | None:
    """How the files were read; None where the config does not say."""
    size, convert = run.config.get("image_size"), run.config.get("convert")
    if not isinstance(size, int) or not isinstance(convert, bool):
        return None
    return {"image_size": size, "convert": convert}


def _check_pixels(run: MeasuredRun, dataset: Dataset) -> None:
    test = dataset.test
    _check_same(run, "data", "test images", test.pixels.fingerprint())
    _check_same(run, "labels", "true classes", test.label_fingerprint())
    if run.indices[-1] >= len(test):
        raise BadInput(
            f"indices of {run.name}",
            expected=f"less than {len(test)}, the test images of {dataset.name}",
            got=run.indices[-1],
            fix="restore the folder from its source",
        )
    if "contents" in run.config:
        _check_same(run, "contents", "test images", test.pixels.contents(run.indices))


def _check_same(run: MeasuredRun, key: str, what: str, here: str | None) -> None:
    """Refuse what another fingerprint in the run's config says to be others."""
    there = run.config.get(key, here)
    if there != here:
        raise BadInput(
            f"{what} of {run.dataset}",
            expected=f"those that {run.name} certified ({key} {there})",
            got=here,
            fix="pass the --data-root that it was certified with",
        )
