"""What run folders of rows share: checked configs, checked rows, and resuming.

Every row is read with the same care, whatever it says: its text, its checksum, the tag of its run,
the settings it repeats, and whether it is the only row of its image and model or radius.
"""

import abc
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from sween.bounds.radius import check_sigma
from sween.errors import BadInput, CheckFailed, CheckpointError, RunMismatch
from sween.locks import FolderLock
from sween.paths import AnyPath
from sween.records import (
    Record,
    RowWriter,
    from_row,
    read_lines,
    read_rows,
    require_rows_file,
    row_checksum,
    rows_file,
    to_line,
    to_row,
)
from sween.run_folder import atomic_path, read_config, run_folder, run_tag
from sween.runs.shards import Shard, read_shard, writing_shard
from sween.runs.subject import SubjectConfig, classes_of, indices_of, subject_problems

Types = Mapping[str, type | UnionType]

SUBJECT_TYPES: Types = {
    "dataset": str,
    "images": int,
    "model": str,
    "indices": str,
    "candidates": list,
    "weights": list,
    "sigma": int | float,
    "n": int,
    "seed": int,
    "forward_rows": int,
    "precision": str,
    "noise": str,
}
"""Settings that every config has, with their types."""

RESTORE = "restore the folder from its source, or run it again into a fresh one"

Finding = tuple[int, str]
"""The position of a row, and what is wrong with it."""


class ImageRow(Record, Protocol):
    """A row about one test image."""

    @property
    def index(self) -> int: ...
    @property
    def label(self) -> int | None: ...
    @property
    def run(self) -> str | None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(SubjectConfig, abc.ABC):
    """A config.toml whose parts fit together.

    Attributes:
        content: all of it.
        indices: of the test images.
        tag: identifies the config in its rows.
    """

    VERB: ClassVar[str]
    KIND: ClassVar[str]
    """The `kind` of the config."""
    TYPES: ClassVar[Types]
    REPEATED: ClassVar[tuple[str, ...]]
    """Settings that every row repeats."""
    UNITS: ClassVar[str] = "images"
    """What `units` are, in words."""

    content: Mapping[str, Any]
    indices: tuple[int, ...]
    tag: str

    @classmethod
    def of(cls, content: Mapping[str, Any], *, where: str = "config") -> Self:
        """Check a config.

        Raises:
            CheckpointError: a setting is missing, or no run can have these settings.
            RunMismatch: images, members and weights contradict each other.
        """
        wrong = cls.wrong_types(content)
        if wrong:
            raise CheckpointError(
                where,
                expected=f"the config of `sween {cls.VERB}` with {', '.join(wrong)}",
                got=", ".join(repr(content.get(name)) for name in wrong),
                fix="restore the file from its source",
            )
        try:
            check_sigma(content["sigma"])
            tag = run_tag(content)  # fails on dates and NaN, which JSON lacks
            settings = cls.parse(content)
        except (BadInput, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                where, expected="settings that fit together", got=error, fix="restore it"
            ) from None
        problems = subject_problems(content)
        if problems:
            raise RunMismatch(where, "; ".join(problems), fix=RESTORE)
        return cls(content=content, indices=tuple(indices_of(content)), tag=tag, **settings)

    @classmethod
    def wrong_types(cls, content: Mapping[str, Any]) -> list[str]:
        """Settings that are missing or of another type: without them, any row would pass."""
        types = {**SUBJECT_TYPES, **cls.TYPES}
        wrong = [name for name, kind in types.items() if not isinstance(content.get(name), kind)]
        return wrong if content.get("kind", cls.KIND) == cls.KIND else ["kind", *wrong]

    @classmethod
    @abc.abstractmethod
    def parse(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that a subclass adds."""

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """The config of a run folder."""
        return cls.of(read_config(folder), where=f"{folder}/config.toml")

    @property
    @abc.abstractmethod
    def parts(self) -> Sequence[object]:
        """What there is one row of for every image, such as models or radii."""

    @property
    def planned(self) -> bool:
        """Whether the votes on an image depend on the pilot votes on all images."""
        return False

    @property
    def units(self) -> Sequence[Sequence[int]]:
        """What shards take in turn: images, or groups of images that stay together."""
        return [(index,) for index in self.indices]

    def indices_of(self, shard: Shard | None) -> tuple[int, ...]:
        """The test images of a shard; of the whole run if None."""
        if shard is None:
            return self.indices
        return tuple(itertools.chain.from_iterable(shard.take(self.units, self.UNITS)))

    @property
    def fingerprint(self) -> str | None:
        """Of the model's weights, where recorded."""
        return self.content.get("fingerprint")

    @property
    def rows(self) -> int:
        """How many rows a complete run has."""
        return len(self.indices) * len(self.parts)


Config = TypeVar("Config", bound=RunConfig)
Row = TypeVar("Row", bound=ImageRow)


@dataclasses.dataclass(frozen=True)
class RowRun(abc.ABC, Generic[Config, Row]):
    """A run folder whose rows were checked; some may still be missing.

    Attributes:
        file: its rows.
        config: its config.toml, that of the whole run.
        rows: in the order of the file.
        shard: the part of the run that the folder is of; None for all of it.
    """

    FILE: ClassVar[str]
    PART: ClassVar[str]
    """The field in which the rows of one image differ; `RunConfig.parts` are its values."""

    file: Path
    config: Config
    rows: Sequence[Row]
    shard: Shard | None = None

    def __repr__(self) -> str:
        images = len({row.index for row in self.rows})
        part = "" if self.shard is None else f" of shard {self.shard}"
        return (
            f"{type(self).__name__}({str(self.file.parent)!r}, model={self.config.model!r}, "
            f"{images} of {len(self.indices)} images{part})"
        )

    @classmethod
    @abc.abstractmethod
    def kinds(cls) -> tuple[type[Config], type[Row]]:
        """The classes of its config and of its rows."""

    @classmethod
    def read(cls, folder: AnyPath, *, part: bool = False) -> Self:
        """The rows of a folder, each of them checked.

        Each row must match its checksum, carry the tag of this run, have the settings of the
        config, and say what its votes say; rows of one image must agree with each other. Rows may
        be missing if the run is unfinished: see `check_complete`.

        Args:
            folder: of the run.
            part: whether the folder may be that of a shard, which may have no rows yet.

        Raises:
            CheckpointError: a config that no run can have, or a shard if not `part`.
            RunMismatch: names the first row that differs, and what differs in it.
            BadInput: rows that cannot be read.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits")
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> run = sween.certify_dataset(
            ...     smoothed, digits, out="run", indices=range(10), n=500, quiet=True
            ... )
            >>> sween.CertificationRun.read("run").rows == run.rows
            True
        """
        config_kind, _ = cls.kinds()
        shard = read_shard(folder)
        if shard is not None and not part:
            raise CheckpointError(
                str(folder),
                expected="a whole run",
                got=f"shard {shard} of one",
                fix="put its shards together with `sween merge`",
            )
        if shard is not None and rows_file(folder, cls.FILE) is None:
            return cls(Path(folder) / cls.FILE, config_kind.read(folder), (), shard)
        file = require_rows_file(folder, cls.FILE, verb=config_kind.VERB)
        return cls.read_file(file, config_kind.read(folder), shard)

    @classmethod
    def read_file(cls, file: Path, config: Config, shard: Shard | None) -> Self:
        """The rows of a file, each of them checked; see `read`."""
        _, row_kind = cls.kinds()
        rows, texts = list[Row](), list[list[str]]()
        lines = zip(read_rows(file), read_lines(file), strict=False)
        for number, (content, line) in enumerate(lines, start=1):
            where = f"{file}, line {number} (index {content.get('index')})"
            rows.append(from_row(row_kind, content, where=where))
            texts.append(_text_problems(content, line))
        run = cls(file, config, rows, shard)
        for place, problems in enumerate(run.row_problems()):
            run.refuse(place, [*problems, *run.config_problems(rows[place]), *texts[place]])
        seen = set[object]()
        for place, row in enumerate(rows):
            if run.key(row) in seen:
                part = getattr(row, cls.PART)
                run.refuse(
                    place, [f"the row of index {row.index} and {cls.PART} {part} comes twice"]
                )
            seen.add(run.key(row))
        for place, finding in run.disagreements():
            run.refuse(place, [finding])
        return run

    @abc.abstractmethod
    def row_problems(self) -> Iterable[Sequence[str]]:
        """For each row, what does not follow from its votes."""

    @abc.abstractmethod
    def disagreements(self) -> Iterable[Finding]:
        """Rows that contradict other rows."""

    @abc.abstractmethod
    def counts(self, row: Row) -> Sequence[int]:
        """A row's votes for each class."""

    @functools.cached_property
    def classes(self) -> int:
        """The data set's number of classes if it is known, else that of the first row."""
        known = classes_of(self.config.content)
        return known or (len(self.counts(self.rows[0])) if self.rows else 2)

    def key(self, row: Row) -> tuple[int, object]:
        """What no two rows share."""
        return row.index, getattr(row, self.PART)

    @functools.cached_property
    def indices(self) -> tuple[int, ...]:
        """The test images that the folder is about."""
        return self.config.indices_of(self.shard)

    @functools.cached_property
    def _images(self) -> frozenset[int]:
        return frozenset(self.indices)

    def row_keys(self) -> Iterator[tuple[int, object]]:
        """The image and part of each row of the complete folder, in order."""
        return ((index, part) for index in self.indices for part in self.config.parts)

    @property
    def missing(self) -> set[tuple[int, object]]:
        """Those of `row_keys` that have no row."""
        return set(self.row_keys()) - {self.key(row) for row in self.rows}

    def config_problems(self, row: Row) -> Iterator[str]:
        """What in a row differs from the config."""
        for name in self.config.REPEATED:
            own, said = getattr(row, name), self.config.content[name]
            if own != said:
                yield f"{name} is {own!r}, the run's config says {said!r}"
        if row.run != self.config.tag:
            yield f"it belongs to a run of another config ({row.run}, not {self.config.tag})"
        part = getattr(row, self.PART)
        if row.index not in self._images or part not in self.config.parts:
            whole = "run" if self.shard is None else f"shard ({self.shard})"
            yield f"the row of index {row.index} and {self.PART} {part} is not of this {whole}"
        found = len(self.counts(row))
        if found != self.classes:
            yield f"counts are of {found} classes, the run has {self.classes}"
        if row.label is not None and not 0 <= row.label < self.classes:
            yield f"label is {row.label}, not one of {self.classes} classes"

    def where(self, place: int) -> str:
        """The line of a row, in words."""
        return f"{self.file}, line {place + 1} (index {self.rows[place].index})"

    def refuse(self, place: int, problems: Sequence[str]) -> None:
        """Refuse a row that has problems."""
        if problems:
            raise RunMismatch(self.where(place), "; ".join(problems), fix=RESTORE)

    def check_values(self, name: str, values: Mapping[int, object], source: str) -> None:
        """Refuse rows in which a field differs from what a source says of their image."""
        for place, row in enumerate(self.rows):
            own, other = getattr(row, name), values[row.index]
            if own != other:
                self.refuse(place, [f"{name} is {own}, {source} says {other}"])

    def check_complete(self) -> None:
        """Check that no row is missing.

        Raises:
            CheckFailed: names the first that is.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits")
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> run = sween.certify_dataset(
            ...     smoothed, digits, out="run", indices=range(10), n=500, quiet=True
            ... )
            >>> sween.CertificationRun.read("run").check_complete()
        """
        missing = self.missing
        if missing:
            index, part = next(key for key in self.row_keys() if key in missing)
            rows = f"{len(missing)} of {len(missing) + len(self.rows)} rows"
            shard = "" if self.shard is None else f" of shard {self.shard}"
            raise CheckFailed(
                f"{self.file}: {rows}{shard} are missing, the first that of index {index} and "
                f"{self.PART} {part}; run the same `sween {self.config.VERB}` again to finish"
            )

    @classmethod
    def verify(cls, folder: AnyPath) -> Self:
        """Read a folder, which may be a shard's, that must be complete.

        What a reader would refuse fails the check.

        Raises:
            CheckFailed: names the first row that differs, and what differs in it.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits")
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> run = sween.certify_dataset(
            ...     smoothed, digits, out="run", indices=range(10), n=500, quiet=True
            ... )
            >>> sween.CertificationRun.verify("run")
            CertificationRun('run', model='SWEEN-3', 10 of 10 images)
        """
        # Another kind of folder, or no config to check rows against, is bad input.
        if read_shard(folder) is None:
            require_rows_file(folder, cls.FILE, verb=cls.kinds()[0].VERB)
        try:
            run = cls.read(folder, part=True)
        except CheckpointError:
            raise
        except RunMismatch as error:
            raise CheckFailed(error.finding) from None
        except BadInput as error:
            raise CheckFailed(str(error)) from None
        run.check_complete()
        return run


def _text_problems(row: Mapping[str, Any], line: bytes) -> list[str]:
    problems = []
    if row.get("checksum") != row_checksum(row):
        problems.append("checksum does not match the row's content")
    if to_line(row) != line:
        # Other digits may read back as the same number; of a repeated name one value is lost.
        problems.append("the text is not as sween writes this row")
    return problems


class RowAppender(Generic[Config, Row]):
    """Appends rows to a run that is being written.

    Attributes:
        rows: those that were there, and those appended.
    """

    def __init__(self, writer: RowWriter, run: RowRun[Config, Row]) -> None:
        self._writer, self._run = writer, run
        self._missing = run.missing
        self.rows = list(run.rows)

    @property
    def left(self) -> list[int]:
        """Images that lack a row."""
        lacking = {index for index, _ in self._missing}
        return [index for index in self._run.indices if index in lacking]

    def append(self, rows: Iterable[Row]) -> list[Row]:
        """Write those rows that are missing, with the run's tag; returns them."""
        fresh = [
            dataclasses.replace(row, run=self._run.config.tag)
            for row in rows
            if self._run.key(row) in self._missing
        ]
        self._writer.append([to_row(row) for row in fresh])
        self._missing -= {self._run.key(row) for row in fresh}
        self.rows += fresh
        return fresh

    def put_in_order(self) -> None:
        """Rewrite a complete file whose rows are not in the order in which one engine writes them.

        Several engines append rows as they are finished.
        """
        by_key = {self._run.key(row): row for row in self.rows}
        keys = [key for key in self._run.row_keys() if key in by_key]
        if self._missing or keys == list(by_key):
            return
        with atomic_path(self._run.file) as temporary:
            temporary.write_bytes(b"".join(to_line(to_row(by_key[key])) for key in keys))


@contextlib.contextmanager
def resuming(
    kind: type[RowRun[Config, Row]],
    folder: AnyPath,
    content: Mapping[str, Any],
    *,
    shard: Shard | None = None,
    **values: Mapping[int, object] | None,
) -> Iterator[RowAppender[Config, Row]]:
    """A run to append to, new or interrupted; no other writer may use the folder meanwhile.

    A kill at any instant loses at most the row being written. Existing rows are read as `sween
    verify` reads them: rows that it refuses are not added to.

    Args:
        kind: of run.
        folder: of the run.
        content: of its config; a folder with another one is refused.
        shard: the part of the run to write; a folder of another part is refused.
        values: what fields of existing rows must be, by index.
    """
    folder = Path(folder)
    with (
        FolderLock(folder) as lock,
        writing_shard(folder, shard),
        run_folder(folder, content, rows=kind.FILE, lock=lock) as path,
    ):
        if path.exists():
            run = kind.read(folder, part=True)
            for name, wanted in values.items():
                if wanted is not None:
                    run.check_values(name, wanted, "this command")
        else:
            run = kind(path, kind.kinds()[0].read(folder), (), shard)
        with RowWriter(path) as writer:
            appender = RowAppender(writer, run)
            yield appender
        appender.put_in_order()
