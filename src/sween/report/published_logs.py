"""Certification logs that other projects published, read image by image.

Cohen et al. (2019) and code built on theirs write tab-separated text; MACER (Zhai et al. 2020)
writes .mat files. A radius in text was rounded when printed, often up, so it is read as the
interval of radii that print as that text, and every number computed from a log is an interval too.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sween.bounds import radius_cohen
from sween.errors import BadInput, describe_error, describe_type
from sween.paths import AnyPath
from sween.records import ABSTAIN

COLUMNS = ("idx", "label", "predict", "radius", "correct")
"""What a tab-separated log must have; other columns, such as time, are ignored."""

SLACK = 1e-6
"""Relative: `radius_cohen` is rounded down a little, and other code may compute in float32."""

AGAIN = "download the log again from its source"

Votes = Literal["hard", "soft"]
Array = np.ndarray


class Interval(NamedTuple):
    """From the smallest to the largest value that the rounding allows."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class CertificationLog:
    """Certified radii as intervals, arrays with one entry per image.

    Attributes:
        name: of the file or the model.
        indices: int64 (N,), the images' indices in the data set, each once.
        correct: bool (N,), whether the true class was certified.
        low: float64 (N,), the smallest radius that prints as the file's text; 0 for an abstention.
        high: float64 (N,), the largest; equal to `low` where all digits are known.
        labels: int64 (N,), or None where the file has none.
        predictions: int64 (N,), ABSTAIN for an abstention; None where the file has none.
        sigma: noise level, where known.
    """

    name: str
    indices: Array
    correct: Array
    low: Array
    high: Array
    labels: Array | None = None
    predictions: Array | None = None
    sigma: float | None = None

    def at(self, places: Array) -> "CertificationLog":
        """The images at these places of the arrays, in that order."""
        fields = vars(self).items()
        return CertificationLog(**{k: v[places] if isinstance(v, Array) else v for k, v in fields})

    @property
    def counted(self) -> tuple[Array, Array]:
        """Both ends of the radius that each image contributes: 0 where wrong or abstained."""
        return np.where(self.correct, self.low, 0.0), np.where(self.correct, self.high, 0.0)

    @property
    def acr(self) -> Interval:
        """Average certified radius."""
        return Interval(*(math.fsum(ends.tolist()) / ends.size for ends in self.counted))

    def accuracy(self, radius: float) -> Interval:
        """Certified accuracy at a radius."""
        return Interval(*(float(np.mean(self.correct & (e >= radius))) for e in self.counted))


def read_tsv_log(
    path: AnyPath,
    *,
    significant_digits: int | None = None,
    limit: float = math.inf,
) -> CertificationLog:
    """Read a tab-separated log, refusing one that contradicts itself.

    A printed radius may be off by half a unit of its last digit, which holds for every way of
    rounding to nearest. Format ".3", which Cohen et al. use, drops trailing zeros: its "1.8" stands
    for 1.80, ten times more precise than the text alone says.

    Args:
        path: the file, with a line of column names.
        significant_digits: of the format that printed the radii, if known (3 for ".3"); text that
            this format never prints is refused.
        limit: the `largest_radius` of the log's settings; larger radii are refused.
    """
    path = Path(path)
    if significant_digits is not None and significant_digits < 1:
        got = significant_digits
        raise BadInput("significant_digits", expected="at least 1", got=got, fix="try 3")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(str(path), expected="a text file", got=error, fix="unpack it") from None
    lines = [(f"{path}, line {i}", s) for i, s in enumerate(text.split("\n"), 1) if s.strip()]
    if not lines:
        raise BadInput(str(path), expected="a header and rows", got="an empty file", fix=AGAIN)
    header = [name.strip() for name in lines[0][1].split("\t")]
    if any(header.count(name) != 1 for name in COLUMNS):
        raise BadInput(
            f"{lines[0][0]}: columns: expected {', '.join(COLUMNS)}, each once and separated by "
            f"tabs, got {', '.join(header)}; pass a certification log with its header line"
        )
    kinds = [("index", "i8"), ("label", "i8"), ("prediction", "i8"), ("low", "f8"), ("high", "f8")]
    parsed = [_parse_line(line, header, where, significant_digits) for where, line in lines[1:]]
    rows = np.array(parsed, dtype=kinds)
    return _checked_log(
        path,
        [f"{where}: radius" for where, _ in lines[1:]],
        limit,
        indices=rows["index"],
        correct=rows["prediction"] == rows["label"],
        low=rows["low"],
        high=rows["high"],
        labels=rows["label"],
        predictions=rows["prediction"],
    )


def read_macer_log(
    path: AnyPath,
    *,
    start: int,
    skip: int = 1,
    votes: Votes = "hard",
    limit: float = math.inf,
) -> CertificationLog:
    """Read a .mat file of MACER: vectors "hard" and "soft" of all radii, -1 if wrong or abstained.

    Most damaged files are refused, but a wrong type code in one can crash scipy's compiled parser:
    read files from a source you trust.

    Args:
        path: the file, which says neither which images it is about nor their classes.
        start: index of the first image, MACER's --start_img (500 by default there).
        skip: distance from one image to the next, MACER's --skip.
        votes: "hard" counts classes as Cohen et al. do; "soft" averages probabilities, which
            certifies another classifier.
        limit: as in `read_tsv_log`; that of hard votes is above what soft votes reach.
    """
    from scipy.io import loadmat

    path = Path(path)
    for name, value, least in (("start", start, 0), ("skip", skip, 1)):
        if value < least:
            raise BadInput(name, expected=f"at least {least}", got=value, fix="see MACER's options")
    try:
        content: dict[str, Any] = loadmat(path, appendmat=False)
    except Exception as error:  # scipy's parser fails in many ways on a damaged file
        got = describe_error(error)
        raise BadInput(str(path), expected="a .mat file up to v5", got=got, fix=AGAIN) from None
    if votes not in content:
        raise BadInput(
            str(path),
            expected=f"a variable {votes!r}, as MACER writes it",
            got=", ".join(name for name in content if not name.startswith("__")) or "no variables",
            fix=f"pass `LogFormat.votes={'soft' if votes == 'hard' else 'hard'}` if that is there",
        )
    values = content[votes]
    numeric = isinstance(values, np.ndarray) and values.dtype.kind in "fiu"
    if not numeric or values.size != max(values.shape):  # a row or a column
        got = f"shape {values.shape} of {values.dtype}" if numeric else describe_type(values)
        raise BadInput(f"{path}: {votes}", expected="one row of real numbers", got=got, fix=AGAIN)
    radii, indices = values.ravel().astype(np.float64), start + skip * np.arange(values.size)
    places = [f"{path}: {votes}[{i}] (index {index})" for i, index in enumerate(indices)]
    correct = radii != -1
    for i in np.flatnonzero(correct & ~(np.isfinite(radii) & (radii >= 0))):
        expected = "a finite radius of at least 0, or -1"
        raise BadInput(places[i], expected=expected, got=radii[i], fix=AGAIN)
    radii = np.where(correct, radii, 0.0)
    return _checked_log(
        path, places, limit, indices=indices, correct=correct, low=radii, high=radii
    )


def printed_interval(text: str, *, significant_digits: int | None = None) -> tuple[float, float]:
    """The radii that print as `text`, a finite number of at least 0; see `read_tsv_log`.

    Converting the exact decimal ends to floats is safe: rounding is monotonic, so a float between
    the exact ends is between the rounded ones.
    """
    value, exact = Decimal(text), Context(prec=400)
    place = value.as_tuple().exponent
    assert isinstance(place, int), "a finite number"
    if significant_digits is not None:
        if not value:
            return 0.0, 0.0  # significant digits never round a positive number to 0
        place = value.adjusted() - significant_digits + 1
    half = Decimal((0, (5,), place - 1))
    return max(0.0, float(exact.subtract(value, half))), float(exact.add(value, half))


def largest_radius(*, sigma: float, n: int, alpha: float) -> float:
    """The radius of n votes for one class, sigma * icdf(alpha ** (1/n))."""
    return float(radius_cohen(n, n, alpha=alpha, sigma=sigma))


def _parse_line(
    line: str, header: Sequence[str], where: str, significant_digits: int | None
) -> tuple[int, int, int, float, float]:
    def refuse(column: str, expected: str, fix: str = AGAIN) -> BadInput:
        return BadInput(f"{where}: {column}", expected=expected, got=repr(row[column]), fix=fix)

    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != len(header):
        fix = "delete the line if the run was stopped while writing it"
        raise BadInput(where, expected=f"{len(header)} fields", got=len(fields), fix=fix)
    row = dict(zip(header, fields, strict=True))
    for column, least in (("idx", 0), ("label", 0), ("predict", ABSTAIN)):
        if not re.fullmatch(r"-?[0-9]{1,18}", row[column]) or int(row[column]) < least:
            raise refuse(column, f"a whole number of at least {least}")
    label, prediction, radius = int(row["label"]), int(row["predict"]), row["radius"]
    number = re.fullmatch(r"[0-9]{1,40}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?", radius)
    if not number or not math.isfinite(float(radius)):
        raise refuse("radius", "a finite number of at least 0")
    if significant_digits is not None and f"{float(radius):.{significant_digits}}" != radius:
        expected = f'a number as format ".{significant_digits}" prints it'
        raise refuse("radius", expected, "leave out `LogFormat.significant_digits`")
    if prediction == ABSTAIN and Decimal(radius):
        raise refuse("radius", "0 for an abstention (predict -1)")
    if row["correct"] != str(int(prediction == label)):
        raise refuse("correct", f"{int(prediction == label)} for {label=} and {prediction=}")
    low, high = printed_interval(radius, significant_digits=significant_digits)
    if prediction == ABSTAIN:
        low = high = 0.0
    return int(row["idx"]), label, prediction, low, high


def _checked_log(
    path: Path, places: Sequence[str], limit: float, **columns: Any
) -> CertificationLog:
    """A log under its file's name: images, each once, with radii that n equal votes can give."""
    low, high = columns["low"], columns["high"]
    for i in np.flatnonzero(low > limit * (1 + SLACK)).tolist():
        raise BadInput(
            places[i],
            expected=f"at most {limit:.4g}, which n equal votes give at that sigma and alpha",
            got=f"{(low[i] + high[i]) / 2:.6g}",
            fix="if the log has others, pass `LogFormat.sigma`, `LogFormat.n`, `LogFormat.alpha`",
        )
    indices, counts = np.unique(columns["indices"], return_counts=True)
    if not indices.size:
        raise BadInput(str(path), expected="at least one image", got="none", fix=AGAIN)
    if counts.max() > 1:  # it would count twice in every average
        got = f"index {indices[counts.argmax()]} {counts.max()} times"
        fix = "keep one row, or split the runs that were joined"
        raise BadInput(str(path), expected="one row per image", got=got, fix=fix)
    known = path.suffix in (".tsv", ".txt", ".log", ".mat")  # sigma_0.50 has no suffix
    return CertificationLog(path.stem if known else path.name, **columns)
