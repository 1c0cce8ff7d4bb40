"""The tab-separated certification logs that published code writes, read back image by image.

Their columns are idx, label, predict, radius, correct and time (Cohen et al. 2019 and those who
built on their code). A radius there was rounded when printed, often up, so each is read as the
interval of radii that print as that text; a number computed from a log is then an interval too.
"""

import dataclasses
import decimal
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from sween.bounds.radius import radius_cohen
from sween.errors import BadInput
from sween.paths import AnyPath
from sween.records import ABSTAIN

COLUMNS = ("idx", "label", "predict", "radius", "correct")
"""What a log must have; time may be missing, and other columns are passed over."""

NUMBER = re.compile(r"[0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,3})?")
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
CLOCK_TIME = re.compile(r"(?:([0-9]+) days?, )?([0-9]+):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")

AGAIN = "fetch the log again from its source"

SLACK = 1e-6
"""Relative: `radius_cohen` is rounded down a little, and other code may compute in float32."""

ROOMY = decimal.Context(prec=400)
"""Subtracts half a digit exactly, however long the printed text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassicRow:
    """One image of a published log.

    Attributes:
        index: the image's place in its data set.
        label: the true class; None where the file does not say.
        prediction: the certified class, ABSTAIN where it declines, None where the file does not
            say.
        correct: whether it certifies the true class.
        low: the smallest radius that prints as the file's text; 0 for an abstention.
        high: the largest; equal to `low` where the file holds all digits.
        seconds: what the image took; None where the file does not say.
    """

    index: int
    label: int | None
    prediction: int | None
    correct: bool
    low: float
    high: float
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class ClassicLog:
    """A published log: its name, one row for each image, and its noise level if somebody said it.

    Raises:
        BadInput: no rows, or an image twice, which would weigh double in every average.
    """

    name: str
    rows: list[ClassicRow]
    sigma: float | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise BadInput(self.name, expected="at least one image", got="none", fix=AGAIN)
        seen: set[int] = set()
        for row in self.rows:
            if row.index in seen:
                raise BadInput(
                    self.name,
                    expected="one row for each image",
                    got=f"index {row.index} twice",
                    fix="keep one of the two rows, or split the runs that were joined",
                )
            seen.add(row.index)


def read_classic_log(
    path: AnyPath,
    *,
    significant_digits: int | None = None,
    sigma: float | None = None,
    n: int | None = None,
    alpha: float | None = None,
) -> ClassicLog:
    """Read a tab-separated log, refusing what contradicts itself.

    By default a printed radius may be off by half a unit of its last printed digit, which holds
    for every way of rounding to the nearest. Format ".3", which Cohen et al.'s code uses, drops
    trailing zeros: its "1.8" stands for 1.80, ten times sharper than the text alone says.
    `significant_digits=3` uses that, and refuses text that this format never prints.

    Args:
        path: the file, with a line of column names.
        significant_digits: the precision of the format that printed the radii, if known.
        sigma: noise level; with `n` and `alpha`, radii that no votes can give are refused.
        n: votes behind a radius.
        alpha: failure probability of a certificate.

    Raises:
        BadInput: a file that is missing, empty, incomplete or inconsistent.
    """
    path = Path(path)
    limit = largest_radius(sigma=sigma, n=n, alpha=alpha)
    if significant_digits is not None and significant_digits < 1:
        raise BadInput(
            "significant_digits", expected="at least 1", got=significant_digits, fix="try 3"
        )
    lines = _lines(path)
    header = [name.strip() for name in lines[0][1].split("\t")]
    if any(header.count(name) != 1 for name in COLUMNS):
        raise BadInput(
            f"{path}, line {lines[0][0]}: columns",
            expected=f"{', '.join(COLUMNS)}, each once and separated by tabs",
            got=", ".join(header),
            fix="name a certification log with its header line",
        )
    rows = []
    for number, line in lines[1:]:
        where = f"{path}, line {number}"
        fields = _fields(line, header, where)
        row = _row(fields, where, significant_digits)
        check_within(row.low, limit, f"{where}: radius", fields["radius"])
        rows.append(row)
    return named_log(path, rows)


def named_log(path: Path, rows: list[ClassicRow]) -> ClassicLog:
    """A log under its file's name; a dot in it is part of it, as in sigma_0.50."""
    known = path.suffix in (".tsv", ".txt", ".log", ".mat")
    try:
        return ClassicLog(path.stem if known else path.name, rows)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def printed_interval(text: str, *, significant_digits: int | None = None) -> tuple[float, float]:
    """The radii that print as `text`, never below 0.

    Converting the exact decimal ends to floats is safe: rounding is monotonic, so a float between
    the exact ends is between the rounded ones.

    Args:
        text: a finite number, at least 0, in decimal or scientific notation.
        significant_digits: see `read_classic_log`.
    """
    value = decimal.Decimal(text)
    place = value.as_tuple().exponent
    assert isinstance(place, int), "a finite number"
    if significant_digits is not None:
        if not value:
            return 0.0, 0.0  # significant digits never round a positive number to 0
        place = value.adjusted() - significant_digits + 1
    half = decimal.Decimal((0, (5,), place - 1))
    return max(0.0, float(ROOMY.subtract(value, half))), float(ROOMY.add(value, half))


def largest_radius(*, sigma: float | None, n: int | None, alpha: float | None) -> float:
    """The radius of n votes for one class, sigma * icdf(alpha ** (1/n)); infinite if none is given.

    Raises:
        BadInput: only some of the three are given, or one is out of range.
    """
    given = {"sigma": sigma, "n": n, "alpha": alpha}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return math.inf
    if sigma is None or n is None or alpha is None:
        raise BadInput(
            "sigma, n and alpha",
            expected="all three or none",
            got=f"no {' and no '.join(missing)}",
            fix="give all three to check the radii against them",
        )
    return float(radius_cohen(n, n, alpha=alpha, sigma=sigma))


def check_within(low: float, limit: float, what: str, shown: object) -> None:
    """Refuse a radius that even n equal votes cannot give: the settings are not the file's."""
    if low > limit * (1 + SLACK):
        raise BadInput(
            what,
            expected=f"at most {limit:.4g}, which n equal votes give at that sigma and alpha",
            got=shown,
            fix="if the log's own differ, say so: --log-sigma, --log-n, --log-alpha",
        )


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines with something in them, numbered from 1."""
    if not path.is_file():
        raise BadInput(
            str(path),
            expected="a certification log",
            got="a folder" if path.is_dir() else "no such file",
            fix="name a tab-separated file",
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            str(path), expected="a text file", got=error, fix="unpack it first, or fetch it again"
        ) from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise BadInput(
            str(path), expected="a header and a line for each image", got="an empty file", fix=AGAIN
        )
    return lines


def _fields(line: str, header: Sequence[str], where: str) -> dict[str, str]:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != len(header):
        raise BadInput(
            where,
            expected=f"{len(header)} fields separated by tabs, as in the header",
            got=len(fields),
            fix="delete the line if the run was stopped while writing it",
        )
    return dict(zip(header, fields, strict=True))


def _row(fields: Mapping[str, str], where: str, significant_digits: int | None) -> ClassicRow:
    label = _whole(fields["label"], f"{where}: label", least=0)
    prediction = _whole(fields["predict"], f"{where}: predict", least=ABSTAIN)
    low, high = _interval(fields["radius"], f"{where}: radius", significant_digits)
    if prediction == ABSTAIN:
        if decimal.Decimal(fields["radius"]):
            raise BadInput(
                f"{where}: radius",
                expected="0 for an abstention (predict -1)",
                got=fields["radius"],
                fix=AGAIN,
            )
        low = high = 0.0
    if fields["correct"] != str(int(prediction == label)):
        raise BadInput(
            f"{where}: correct",
            expected=f"{int(prediction == label)} for label {label} and predict {prediction}",
            got=repr(fields["correct"]),
            fix=AGAIN,
        )
    return ClassicRow(
        index=_whole(fields["idx"], f"{where}: idx", least=0),
        label=label,
        prediction=prediction,
        correct=prediction == label,
        low=low,
        high=high,
        seconds=_seconds(fields.get("time", ""), f"{where}: time"),
    )


def _whole(text: str, what: str, *, least: int) -> int:
    if not WHOLE_NUMBER.fullmatch(text) or int(text) < least:
        raise BadInput(
            what, expected=f"a whole number, at least {least}", got=repr(text), fix=AGAIN
        )
    return int(text)


def _interval(text: str, what: str, significant_digits: int | None) -> tuple[float, float]:
    if not _is_number(text):
        raise BadInput(what, expected="a finite number, at least 0", got=repr(text), fix=AGAIN)
    if significant_digits is not None and f"{float(text):.{significant_digits}}" != text:
        raise BadInput(
            what,
            expected=f'a number as format ".{significant_digits}" prints it',
            got=repr(text),
            fix="leave significant_digits out",
        )
    return printed_interval(text, significant_digits=significant_digits)


def _seconds(text: str, what: str) -> float | None:
    """Seconds from "15.4" or from "0:00:02.994643"; None from nothing."""
    if not text:
        return None
    if clock := CLOCK_TIME.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return ((24 * days + hours) * 60 + minutes) * 60 + seconds
    if not _is_number(text):
        raise BadInput(
            what, expected='"15.4" or "0:00:15.4"', got=repr(text), fix="empty the field"
        )
    return float(text)


def _is_number(text: str) -> bool:
    return bool(NUMBER.fullmatch(text)) and math.isfinite(float(text))
