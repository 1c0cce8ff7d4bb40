"""Per-example results as JSON rows: written one at a time, read back strictly, resumable.

A row is one line, appended by one `write` call, so a kill at any instant can tear only the last
line. Readers ignore a torn last line, writers remove it before they go on. Every row carries a
checksum of its other fields, so that any single changed character is found.
"""

import dataclasses
import decimal
import fcntl
import gzip
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_origin

from sween.errors import BadInput, FolderBusy
from sween.paths import AnyPath

SCHEMA = 1
"""Version of the row layout; readers refuse rows from a newer one."""

ABSTAIN = -1
"""The prediction of a classifier that declines to answer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """One image's certified answer, with the votes that prove it.

    With probability at least 1 - `alpha` over the noise, unless `prediction` is ABSTAIN, the
    smoothed classifier answers `prediction` on the whole open l2 ball of `radius` around the image.
    `radius_cohen` and `radius_two_class` each hold with probability 1 - `alpha` on their own, not
    both at once; choose the bound before looking. `lower_bound` is that bound's own lower bound on
    the class's probability, at 0.9 alpha for the two-class one.
    """

    index: int
    label: int | None
    prediction: int
    radius: float
    radius_cohen: float | None
    radius_two_class: float | None
    candidate: int
    lower_bound: float
    selection_counts: tuple[int, ...]
    estimation_counts: tuple[int, ...]
    n0: int
    n: int
    alpha: float
    sigma: float
    bound: str
    sampling: str
    samples: int
    decisions: Mapping[str, bool] | None
    exit: str
    votes: str
    noise: str
    precision: str
    forward_rows: int
    member_evaluations: int
    seconds: float
    """On the clock; of images that are counted together, or on a GPU one behind the other, a mean
    says more than one of them."""
    model: str
    seed: int
    run: str | None = None
    """Names the config of the run that the row belongs to; None outside a run folder."""
    selection_scores: tuple[int, ...] | None = None
    """Soft votes: the class's pilot scores in steps of 1/1024, as bin, count, bin, count, ..."""
    estimation_scores: tuple[int, ...] | None = None
    """Soft votes: its fresh scores, likewise; then `estimation_counts` are for comparison only."""

    @property
    def abstained(self) -> bool:
        return self.prediction == ABSTAIN

    @property
    def correct(self) -> bool:
        """Whether the certified prediction is the true label; False when either is missing."""
        return not self.abstained and self.prediction == self.label

    @property
    def radius_if_correct(self) -> float:
        """What counts towards the average certified radius: 0 where wrong or abstained."""
        return self.radius if self.correct else 0.0

    def __str__(self) -> str:
        """One line for people; the radius is rounded down."""
        if self.abstained:
            answer = "abstained"
        else:
            answer = f"class {self.prediction}, radius {format_radius(self.radius)}"
        if self.label is not None and not self.correct:
            answer += f", true class {self.label}"
        return (
            f"index {self.index}: {answer} (n = {self.samples - self.n0:,}, "
            f"alpha = {self.alpha:g}, sigma = {self.sigma:g})"
        )


_TYPES = {field.name: field.type for field in dataclasses.fields(Certificate)}
_FIELDS = tuple(_TYPES)
_TUPLES = ("selection_counts", "estimation_counts", "selection_scores", "estimation_scores")


def row_checksum(row: Mapping[str, Any]) -> str:
    """Checksum of a row's content, whatever the order of its keys."""
    content = {name: value for name, value in row.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def to_row(certificate: Certificate) -> dict[str, Any]:
    """The JSON object of a certificate, checksum included."""
    row: dict[str, Any] = {"schema": SCHEMA}
    for name in _FIELDS:
        value = getattr(certificate, name)
        row[name] = list(value) if isinstance(value, tuple) else value
    row["checksum"] = row_checksum(row)
    return row


def from_row(row: Mapping[str, Any], *, where: str = "row") -> Certificate:
    """The certificate of a JSON object, refusing missing, extra or newer fields.

    The checksum is not judged here, so that a damaged run can be looked at; whoever relies on the
    rows of a run folder reads them by `sween.runs.certification.read_run`.
    """
    schema = row.get("schema")
    if schema != SCHEMA:
        raise BadInput(
            f"{where}: schema",
            expected=str(SCHEMA),
            got=schema,
            fix="read it with the sween version that wrote it",
        )
    missing = [name for name in _FIELDS if name not in row]
    extra = [name for name in row if name not in {*_FIELDS, "schema", "checksum"}]
    if missing or extra:
        raise BadInput(
            f"{where}: fields",
            expected="those of a certificate",
            got=f"missing {missing}, unknown {extra}",
            fix="restore the file from its source",
        )
    wrong = [f"{name} {row[name]!r}" for name in _FIELDS if not fits_type(row[name], _TYPES[name])]
    if wrong:
        raise BadInput(
            f"{where}: values",
            expected="those of a certificate",
            got=", ".join(wrong),
            fix="restore the file from its source",
        )
    values = {name: row[name] for name in _FIELDS}
    for name in _TUPLES:
        values[name] = None if values[name] is None else tuple(values[name])
    return Certificate(**values)


def fits_type(value: object, annotation: Any) -> bool:
    """Whether a JSON value is of a field's type; a whole number is a float too."""
    if annotation == tuple[int, ...] | None:
        return value is None or fits_type(value, tuple[int, ...])
    if get_origin(annotation) is tuple:
        return isinstance(value, list) and all(type(item) is int for item in value)
    if annotation == Mapping[str, bool] | None:
        return value is None or (
            isinstance(value, dict) and set(map(type, value.values())) <= {bool}
        )
    if annotation is bool:
        return isinstance(value, bool)
    if annotation in (float, float | None):
        annotation = annotation | int
    return isinstance(value, annotation) and not isinstance(value, bool)


def to_line(row: Mapping[str, Any]) -> bytes:
    """The one text of a row: other text that reads back as the same row was not written here."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def read_lines(path: AnyPath) -> Iterator[bytes]:
    path = Path(path)
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        yield from stream


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_rows(path: AnyPath) -> list[dict[str, Any]]:
    """All rows of a .jsonl or .jsonl.gz file; a torn last line is left out."""
    path = Path(path)
    rows: list[dict[str, Any]] = []
    try:
        for number, line in enumerate(read_lines(path), start=1):
            if not line.endswith(b"\n"):
                break  # the row that was being written when the run was killed
            try:
                row = json.loads(line.decode(), parse_float=_finite, parse_constant=_finite)
            except (ValueError, RecursionError) as error:
                raise BadInput(
                    f"{path}, line {number}",
                    expected="one JSON object a line",
                    got=error,
                    fix="restore the file from its source, or delete that line and run again",
                ) from None
            if not isinstance(row, dict):
                raise BadInput(
                    f"{path}, line {number}",
                    expected="a JSON object",
                    got=type(row).__name__,
                    fix="restore the file from its source",
                )
            rows.append(row)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise BadInput(
            str(path), expected="a whole gzip file", got=error, fix="restore the file"
        ) from None
    return rows


def records_file(folder: AnyPath) -> Path:
    """The folder's certificates.jsonl, or its compressed form."""
    folder = Path(folder)
    for name in ("certificates.jsonl", "certificates.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    raise BadInput(
        str(folder),
        expected="a folder with certificates.jsonl or certificates.jsonl.gz",
        got="neither" if folder.is_dir() else "no such folder",
        fix="name a folder written by `sween certify`",
    )


def read_certificates(path: AnyPath) -> list[Certificate]:
    """All certificates of a file or of a run folder, as they stand there: nothing is verified."""
    path = Path(path)
    file = records_file(path) if path.is_dir() or not path.exists() else path
    return [
        from_row(row, where=f"{file}, line {number}")
        for number, row in enumerate(read_rows(file), start=1)
    ]


class RowWriter:
    """Appends rows to a .jsonl file, alone; removes a torn last line first."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise FolderBusy(
                str(path),
                expected="to be the only one writing it",
                got="another process or thread at work in that folder",
                fix="wait for it, or choose another --out",
            ) from None
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == 0 or os.pread(self._descriptor, 1, size - 1) == b"\n":
            return
        content = self.path.read_bytes()
        os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows at once; a failed write (a full disk) leaves none of them behind."""
        text = b"".join(to_line(row) for row in rows)
        before = os.fstat(self._descriptor).st_size
        written = 0
        try:
            while written < len(text):
                written += os.write(self._descriptor, text[written:])
        except OSError as error:
            error.filename = str(self.path)
            if before < os.fstat(self._descriptor).st_size:
                os.ftruncate(self._descriptor, before)
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def format_radius(radius: float, digits: int = 3) -> str:
    """A radius for people: rounded down, since a radius rounded up is a false certificate."""
    # In decimal: radius * 10**digits rounds, which would turn 1.001 into 1.000.
    context = decimal.Context(prec=400, rounding=decimal.ROUND_FLOOR)
    unit = decimal.Decimal(1).scaleb(-digits)
    floored = decimal.Decimal(repr(float(radius) + 0.0)).quantize(unit, context=context)
    return f"{floored:f}"
