"""Training runs: a folder with the config, the metrics and the checkpoint of one candidate.

Every reader and writer of such a folder goes through this module.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Self

from sween.errors import BadInput, CheckpointError
from sween.locks import FolderLock
from sween.models import read_manifest
from sween.models.checkpoint import CHECKPOINT
from sween.paths import AnyPath
from sween.records import RowWriter, read_rows, rows_file
from sween.run_folder import check_config, read_config, run_folder, write_text

METRICS = "metrics.jsonl"

STATE_FILE = "state.safetensors"
"""What an unfinished run resumes from."""

DATA_KEYS = ("image_shape", "train_data", "weights_data")
"""Keys of config.toml that describe the training images; older versions did not record them."""

CODE_KEY = "source_code"
"""Key of config.toml for the digest of a custom architecture's source code."""

DRAWS_KEY = "draws"
"""Key of config.toml of a run under torchrun, which draws differently from others."""

KEYED_DRAWS = "keyed by example"

TEACHER_KEY = "teacher_fingerprint"
"""Key of config.toml of a run with a teacher: which weights that had."""

RECORDED_KEYS = (*DATA_KEYS, CODE_KEY, DRAWS_KEY, TEACHER_KEY)
"""Keys of config.toml that are not training options."""

_TYPES: dict[str, type | UnionType] = {
    "arch": str,
    "dataset": str,
    "method": str,
    "sigma": int | float,
    "seed": int,
}

_RESTORE = "restore the folder from its source"


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The config of a training run: which network was trained, how, and on which images.

    Attributes:
        content: all of config.toml.
        arch: name of the architecture.
        dataset: name of the data set.
        method: training objective.
        sigma: noise level.
        seed: of initial weights, order, augmentation and noise.

    Keys of config.toml:
        image_shape (list of whole numbers): channels, height and width. Absent from runs of older
            versions, as are the next two.
        train_data (text): digest of the training images, their labels and the class names.
        weights_data (text): the same of the weight-solving images.
        source_code (text): SHA-256 of custom code. Absent if all of it is torch's and sween's.
        draws (text): `keyed by example` for a run under torchrun. Absent otherwise.
        teacher_fingerprint (text): digest of the teacher's weights. Absent without a teacher.

    Example:
        See `TrainingRun`.
    """

    content: Mapping[str, Any]
    arch: str
    dataset: str
    method: str
    sigma: float
    seed: int

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """The config of a run folder."""
        content = read_config(folder)
        for name, kind in _TYPES.items():
            if not isinstance(content.get(name), kind):
                raise BadInput(
                    f"{Path(folder) / 'config.toml'}: {name}: expected what `sween train` writes "
                    f"there, got {content.get(name)!r}; {_RESTORE}"
                )
        return cls(content, **{name: content[name] for name in _TYPES})


@dataclasses.dataclass(frozen=True)
class EpochMetrics:
    """A row of metrics.jsonl.

    Attributes:
        epoch: counted from 1.
        loss: mean over the epoch's steps, in nats.
        noisy_accuracy: share of noisy images of the weight-solving split that are classified
            correctly.
        seconds: training time of the epoch, without the time for `noisy_accuracy`.
    """

    epoch: int
    loss: float
    noisy_accuracy: float
    seconds: float

    @classmethod
    def of(cls, row: Mapping[str, Any], where: str) -> Self:
        names = [field.name for field in dataclasses.fields(cls)]
        wrong = [name for name in names if not _is_number(row.get(name))]
        if wrong:
            got = ", ".join(repr(row.get(name)) for name in wrong)
            raise BadInput(f"{where}: {', '.join(wrong)}: expected numbers, got {got}; {_RESTORE}")
        return cls(**{name: row[name] for name in names})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """A training run, finished or not.

    Attributes:
        folder: of the run.
        config: its config.toml.
        metrics: one row per epoch.

    Example:
        >>> import sween
        >>> from sween.runs import TrainingRun
        >>> config = sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=2)
        >>> network = sween.train(config, sween.load_dataset("digits"), "runs/mlp", quiet=True)
        >>> run = TrainingRun.read("runs/mlp")
        >>> run.config.arch, len(run.metrics)
        ('digits-mlp', 2)
    """

    folder: Path
    config: TrainingConfig
    metrics: tuple[EpochMetrics, ...]

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """Read and check a folder of `sween train`; the checkpoint need not be there."""
        folder = Path(folder)
        file = rows_file(folder, METRICS)
        if file is None or not cls.is_at(folder):
            raise BadInput(
                str(folder),
                expected="a folder of `sween train`",
                got="no metrics" if file is None else "a config without arch",
                fix="name a run folder",
            )
        config = TrainingConfig.read(folder)
        rows = enumerate(read_rows(file), start=1)
        metrics = tuple(EpochMetrics.of(row, f"{file}, line {number}") for number, row in rows)
        return cls(folder, config, metrics)

    @staticmethod
    def is_at(folder: AnyPath) -> bool:
        """Whether a folder holds a training run rather than another kind of run."""
        return rows_file(folder, METRICS) is not None and "arch" in read_config(folder)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def seconds(self) -> float:
        """Training time of all epochs. Candidates trained together each count the whole time."""
        return sum(row.seconds for row in self.metrics)


def is_finished(folder: Path) -> bool:
    """Whether the run in a folder has its checkpoint."""
    return (folder / CHECKPOINT).exists()


def check_resumable(
    folder: Path, content: Mapping[str, Any], class_names: tuple[str, ...]
) -> Mapping[str, Any]:
    """Refuse a folder that holds a run with another config, or on other images.

    Folders of older versions do not record their training images. A finished one is left alone; an
    unfinished one is refused, since it might resume on different images.

    Args:
        folder: of the run; may be new.
        content: of the requested config.
        class_names: of the data set.

    Returns:
        The content that config.toml has or gets.
    """
    if (folder / "config.toml").exists():
        known = read_config(folder)
        _check_draws(folder, known, content)
        if not any(key in known for key in DATA_KEYS):
            _check_older(folder, content, class_names)
            content = {name: value for name, value in content.items() if name not in DATA_KEYS}
        if CODE_KEY not in known:
            content = {name: value for name, value in content.items() if name != CODE_KEY}
        check_config(folder, content)
    return content


def _check_draws(folder: Path, known: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    under, plain = "under torchrun, with any number of processes", "without torchrun"
    if known.get(DRAWS_KEY) != content.get(DRAWS_KEY):
        raise CheckpointError(
            str(folder),
            expected=f"to resume {under if DRAWS_KEY in known else plain}, as it was started",
            got=f"`sween train` {plain if DRAWS_KEY in known else 'under torchrun'}",
            fix="run it as before, or choose another folder",
        )


def _check_older(folder: Path, content: Mapping[str, Any], class_names: tuple[str, ...]) -> None:
    if not is_finished(folder):
        raise CheckpointError(
            str(folder),
            expected="a run that records its training images",
            got="an unfinished run of an older version, which does not",
            fix="delete that folder to train from the start, or choose another folder",
        )
    manifest = read_manifest(folder)
    for name, trained, asked in (
        ("image_shape", manifest.image_shape, tuple(content["image_shape"])),
        ("class_names", manifest.class_names, class_names),
    ):
        if trained != asked:
            raise CheckpointError(
                f"{folder} holds a run on different images ({name} {trained} -> {asked})",
                fix="choose another folder, or delete that folder",
            )


@contextlib.contextmanager
def writing(
    folder: Path,
    content: Mapping[str, Any],
    class_names: tuple[str, ...],
    *,
    lock: FolderLock | None = None,
) -> Iterator[Path]:
    """A training run to write, new or resumed; yields the path for `append_metrics`.

    See `check_resumable` for the arguments. The folder is locked while the block runs; `lock` is
    the caller's, if it holds one.
    """
    known = check_resumable(folder, content, class_names)
    done = is_finished(folder)
    with run_folder(
        folder, known, rows=METRICS, others=[STATE_FILE], lock=lock, finished=done
    ) as path:
        yield path


@contextlib.contextmanager
def append_metrics(path: Path, *, epochs_done: int) -> Iterator[RowWriter]:
    """Append to the metrics of a run, dropping those of later epochs, which will be repeated."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = zip(lines, read_rows(path), strict=False)
        write_text(path, "".join(line for line, row in rows if row["epoch"] <= epochs_done))
    with RowWriter(path) as writer:
        yield writer
