"""Per-example results as JSON rows: appended one at a time, validated on reading, resumable.

A row is one line, appended by one `write` call, so a kill at any instant can truncate only the last
line. Readers ignore a truncated last line; writers remove it before they append. Every row carries
a checksum of its other fields, which detects any single changed character.
"""

import dataclasses
import decimal
import fcntl
import functools
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, get_args, get_origin

from sween.errors import BadInput, FolderBusy, describe_type
from sween.paths import AnyPath

ABSTAIN = -1
"""The prediction of a classifier that abstains."""

CERTIFICATES = "certificates.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """The certified prediction for one image, with the votes that prove it.

    Unless `prediction` is ABSTAIN, no l2 perturbation smaller than `radius` changes the prediction
    of the smoothed classifier: no adversarial example lies in the open ball of that radius around
    the image. This holds with probability at least 1 - `alpha` over the noise. Radii and `sigma`
    are in units of pixels scaled to [0,1].

    Attributes:
        index: of the image in its data set, or the number of the image in this classifier's calls;
            the key of its noise.
        label: the true class; None if it is not known.
        prediction: the certified class, or ABSTAIN (-1).
        radius: certified l2 radius, that of `bound`; 0 if it abstains.
        radius_cohen: the radius by Cohen's bound; 0 if that bound abstains. It holds with
            probability 1 - `alpha`, and so does `radius_two_class`, but not both together: choose
            the bound before looking at the votes. Never None in rows that sween writes.
        radius_two_class: the radius by the two-class bound; 0 if that bound abstains; None if the
            sampling or the votes allow no such bound (`decide` and soft votes).
        candidate: the class with the most selection votes, whose probability is bounded.
        lower_bound: the lower confidence bound of `bound` on the probability of `candidate`, at
            level `alpha`, or 0.9 `alpha` for the two-class bound; 0 without estimation votes.
        selection_counts: selection votes for each class; their sum is `n0`.
        estimation_counts: estimation votes for each class; their sum is `samples` - `n0`. With
            soft votes they serve comparison only. Exact noise may, very rarely, lose a vote.
        n0: selection votes drawn.
        n: estimation votes drawn; with `decide` the most that it might have drawn.
        alpha: failure probability of this certificate.
        sigma: noise level.
        bound: `cohen` or `two-class`.
        sampling: how the votes were spent: `fixed`, `decide`, `tolerance` or `budget`.
        samples: noisy images drawn, `n0` included.
        decisions: with `decide`, whether each radius asked for is certified; None otherwise.
        exit: the early exit, with its parameters; `none` without one.
        votes: `hard` or `soft`.
        noise: `float32`, or `exact(levels=L)`.
        precision: the arithmetic of the networks, such as `float32` or `float16+fused`; one for
            each member where they differ.
        forward_rows: noisy images per forward pass; needed to repeat the votes bit for bit.
        member_evaluations: forward passes of single members, on one noisy image each; with soft
            votes, without those that score the pilot once its class is known.
        seconds: wall-clock time. Images that share a batch, or that overlap on a GPU, are timed
            only roughly: use the mean over many.
        model: name of the classifier.
        seed: of the noise.
        run: identifies the config of the row's run; None outside a run folder.
        selection_scores: with soft votes, the histogram of the candidate's scores on the selection
            draws, in steps of 1/1024: bin, count, bin, count, ...; None otherwise.
        estimation_scores: the same on the estimation draws, which prove the radius; None otherwise.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> image, label = digits.images([6])[0], int(digits.labels[6])
        >>> certificate = smoothed.certify_one(image, n=1000, seed=0, indices=6, labels=label)
        >>> certificate.prediction == label, certificate.abstained, certificate.correct
        (True, False, True)
        >>> certificate.n0, certificate.n, sum(certificate.estimation_counts)
        (100, 1000, 1000)
        >>> 0.5 < certificate.radius < certificate.radius_two_class < 1.5
        True
    """

    SCHEMA: ClassVar[int] = 1

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
    model: str
    seed: int
    run: str | None = None
    selection_scores: tuple[int, ...] | None = None
    estimation_scores: tuple[int, ...] | None = None

    @property
    def abstained(self) -> bool:
        """Whether the votes prove nothing: no prediction, and radius 0."""
        return self.prediction == ABSTAIN

    @property
    def correct(self) -> bool:
        """Whether the prediction is the true label; False if it abstained or has no label."""
        return not self.abstained and self.prediction == self.label

    @property
    def radius_if_correct(self) -> float:
        """The image's share in the average certified radius: 0 if misclassified or abstained."""
        return self.radius if self.correct else 0.0

    def __str__(self) -> str:
        """One readable line; the radius is rounded down."""
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


class Record(Protocol):
    """A dataclass that is stored as JSON rows; readers refuse rows of any other `SCHEMA`."""

    SCHEMA: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


AnyRecord = TypeVar("AnyRecord", bound=Record)


def row_checksum(row: Mapping[str, Any]) -> str:
    """Checksum of a row's content, independent of the order of its keys."""
    content = {name: value for name, value in row.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def to_row(record: Record) -> dict[str, Any]:
    """A record as a JSON object, including its checksum."""
    row: dict[str, Any] = {"schema": record.SCHEMA}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        row[field.name] = list(value) if isinstance(value, tuple) else value
    row["checksum"] = row_checksum(row)
    return row


def from_row(kind: type[AnyRecord], row: Mapping[str, Any], *, where: str = "row") -> AnyRecord:
    """Parse a JSON object; refuse missing or unknown fields, other types and other schemas.

    The checksum is not verified here, so that a damaged run can be inspected; `sween.runs` reads
    rows that can be relied on.
    """
    what, checks = kind.__name__, _type_checks(kind)
    if row.get("schema") != kind.SCHEMA:
        raise BadInput(
            f"{where}: schema: expected {kind.SCHEMA}, of {what}, got {row.get('schema')}; read it "
            "with the sween version that wrote it"
        )
    missing, extra = checks.keys() - row.keys(), row.keys() - checks.keys() - {"schema", "checksum"}
    if missing or extra:
        raise BadInput(
            f"{where}: fields: expected those of {what}, got missing {sorted(missing)}, "
            f"unknown {sorted(extra)}; restore the file from its source"
        )
    wrong = [f"{name} {row[name]!r}" for name, fits in checks.items() if not fits(row[name])]
    if wrong:
        raise BadInput(
            f"{where}: values: expected the types of {what}, got {', '.join(wrong)}; restore the "
            "file from its source"
        )
    values = {name: row[name] for name in checks}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


@functools.cache
def _type_checks(kind: type[Record]) -> dict[str, Callable[[object], bool]]:
    """For each field, whether a JSON value has its type; an integer is also a valid float."""
    return {field.name: _type_check(field.type) for field in dataclasses.fields(kind)}


def _type_check(annotation: Any) -> Callable[[object], bool]:
    if annotation == tuple[int, ...] | None:
        return lambda value: value is None or _is_list_of_integers(value)
    if get_origin(annotation) is tuple:
        return _is_list_of_integers
    if annotation == Mapping[str, bool] | None:
        return lambda value: (
            value is None or (isinstance(value, dict) and set(map(type, value.values())) <= {bool})
        )
    if annotation in (float, float | None):
        annotation = annotation | int
    kinds = {*get_args(annotation)} or {annotation}
    return lambda value: type(value) in kinds


def _is_list_of_integers(value: object) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int}


def to_line(row: Mapping[str, Any]) -> bytes:
    """The canonical text of a row: any other text for the same row was not written by sween."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _read_xz(path: Path) -> io.BytesIO:
    """The content of all streams of a file.

    `lzma.LZMAFile` would leave out, without an error, what it cannot read after the first one.
    """
    left, found = path.read_bytes(), list[bytes]()
    while left:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        found.append(stream.decompress(left))
        if not stream.eof:
            raise EOFError("the file ends within a stream")
        left = stream.unused_data.lstrip(b"\0")
        if (len(stream.unused_data) - len(left)) % 4:
            raise lzma.LZMAError("padding that is no multiple of four bytes")
    return io.BytesIO(b"".join(found))


@dataclasses.dataclass(frozen=True)
class Compression:
    """How rows may be compressed, once a run is finished.

    Attributes:
        name: of the format.
        open: opens a file of it for reading bytes.
        errors: that reading a damaged file raises.
        undo: the command that decompresses a file.
    """

    name: str
    open: Callable[[Path], gzip.GzipFile | io.BytesIO]
    errors: tuple[type[Exception], ...]
    undo: str


COMPRESSIONS = {
    ".gz": Compression("gzip", gzip.GzipFile, (gzip.BadGzipFile, zlib.error, EOFError), "gunzip"),
    ".xz": Compression("xz", _read_xz, (lzma.LZMAError, EOFError), "unxz"),
}
"""By what they add to a file's name."""


def read_lines(path: AnyPath) -> Iterator[bytes]:
    path = Path(path)
    compression = COMPRESSIONS.get(path.suffix)
    if compression is None:
        with path.open("rb") as stream:
            yield from stream
        return
    try:
        with compression.open(path) as stream:
            yield from stream
    except compression.errors as error:
        raise BadInput(
            str(path),
            expected=f"a complete {compression.name} file",
            got=error,
            fix="restore the file",
        ) from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_rows(path: AnyPath) -> list[dict[str, Any]]:
    """All rows of a .jsonl file, plain or compressed; a truncated last line is ignored."""
    path = Path(path)
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.endswith(b"\n"):
            break  # the row that was being written when the run was killed
        try:
            row = json.loads(line.decode(), parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            raise BadInput(
                f"{path}, line {number}: expected one JSON object per line, got {error}; "
                "restore the file from its source, or delete that line and run again"
            ) from None
        if not isinstance(row, dict):
            raise BadInput(
                f"{path}, line {number}: expected a JSON object, got {describe_type(row)}; "
                "restore the file from its source"
            )
        rows.append(row)
    return rows


def rows_file(folder: AnyPath, name: str) -> Path | None:
    """A folder's file of rows, plain or else compressed; None if it has neither."""
    plain = Path(folder) / name
    if plain.is_file():
        return plain
    packed = [plain.with_name(f"{name}{suffix}") for suffix in COMPRESSIONS]
    found = [file for file in packed if file.is_file()]
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise BadInput(
            str(folder), expected="one file of rows", got=names, fix="keep the one that is complete"
        )
    return found[0] if found else None


def require_rows_file(folder: AnyPath, name: str, *, verb: str) -> Path:
    """`rows_file` of a folder that must have been written by a verb."""
    file = rows_file(folder, name)
    if file is None:
        raise BadInput(
            str(folder),
            expected=f"a folder with {name}, plain or compressed ({', '.join(COMPRESSIONS)})",
            got="neither" if Path(folder).is_dir() else "no such folder",
            fix=f"pass a folder written by `sween {verb}`",
        )
    return file


def read_certificates(path: AnyPath) -> list[Certificate]:
    """All certificates of a file or run folder, without verification.

    Example:
        >>> import sween
        >>> from sween.records import read_certificates
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> [row.index for row in read_certificates("run")]
        [0, 1, 2]
    """
    file = Path(path)
    if file.is_dir() or not file.exists():
        file = require_rows_file(file, CERTIFICATES, verb="certify")
    return [
        from_row(Certificate, row, where=f"{file}, line {number}")
        for number, row in enumerate(read_rows(file), start=1)
    ]


class RowWriter:
    """Appends rows to a .jsonl file under a lock; first removes a truncated last line."""

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise FolderBusy(
                str(path),
                expected="no other writer",
                got="another process or thread writing to that folder",
                fix="wait for it, or choose another folder",
            ) from None
        self._drop_truncated_line()

    def _drop_truncated_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == 0 or os.pread(self._descriptor, 1, size - 1) == b"\n":
            return
        content = self.path.read_bytes()
        os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append all rows or none: a failed write, such as on a full disk, is undone."""
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

    def __exit__(self, *error: object) -> None:
        self.close()


def format_radius(radius: float, digits: int = 3) -> str:
    """A radius for display, rounded down: rounded up, it would be a false certificate.

    Example:
        >>> from sween.records import format_radius
        >>> format_radius(0.69999), format_radius(1.001, digits=2)
        ('0.699', '1.00')
    """
    # In decimal, since radius * 10**digits rounds, which would turn 1.001 into 1.000.
    context = decimal.Context(prec=400, rounding=decimal.ROUND_FLOOR)
    unit = decimal.Decimal(1).scaleb(-digits)
    floored = decimal.Decimal(repr(float(radius) + 0.0)).quantize(unit, context=context)
    return f"{floored:f}"
