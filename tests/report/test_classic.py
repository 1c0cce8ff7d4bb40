"""Published tab-separated logs: rounding as intervals, times, and one clear line for each fault."""

import csv
import math
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.records import ABSTAIN
from sween.report.classic import (
    ClassicLog,
    ClassicRow,
    largest_radius,
    printed_interval,
    read_classic_log,
)

LOGS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "logs"
AUTHORS = sorted(LOGS.glob("sween-authors/*.tsv"))
LOCUSLAB = sorted(LOGS.glob("locuslab/*.tsv"))
needs_logs = pytest.mark.skipif(not (AUTHORS and LOCUSLAB), reason="published logs not here")

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime"
GOOD = ("3\t1\t1\t0.0838\t1\t15.4", "4\t2\t-1\t0.0\t0\t0:00:02.994643", "9\t0\t5\t1.8\t0\t")

radii = st.floats(min_value=0, max_value=20, allow_subnormal=False)


def write(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "published.tsv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def message(path: Path, **options: float) -> str:
    """What the reader says about a bad file, on one line."""
    with pytest.raises(BadInput) as caught:
        read_classic_log(path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_are_read_with_their_rounding(tmp_path: Path) -> None:
    log = read_classic_log(write(tmp_path, *GOOD))
    assert log.name == "published"
    right, declined, wrong = log.rows
    assert (right.index, right.label, right.prediction, right.correct) == (3, 1, 1, True)
    assert (right.low, right.high) == (0.08375, 0.08385)
    assert right.seconds == 15.4
    assert (declined.prediction, declined.correct) == (ABSTAIN, False)
    assert (declined.low, declined.high, declined.seconds) == (0.0, 0.0, 2.994643)
    assert (wrong.prediction, wrong.correct) == (5, False)
    assert (wrong.low, wrong.high, wrong.seconds) == (1.75, 1.85, None)


def test_known_significant_digits_sharpen_dropped_zeros(tmp_path: Path) -> None:
    rows = read_classic_log(write(tmp_path, *GOOD), significant_digits=3).rows
    assert (rows[0].low, rows[0].high) == (0.08375, 0.08385)
    assert (rows[1].low, rows[1].high) == (0.0, 0.0)
    assert (rows[2].low, rows[2].high) == (1.795, 1.805)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("0.000", 0.0, 0.0005),
        ("0.500", 0.4995, 0.5005),
        ("0.5", 0.45, 0.55),
        ("2", 1.5, 2.5),
        ("0", 0.0, 0.5),
        ("0.0004", 0.00035, 0.00045),
        ("5.13e-05", 5.125e-05, 5.135e-05),
        ("1e+01", 5.0, 15.0),
        ("0.3141592653589793", 0.3141592653589793 - 5e-17, 0.3141592653589793 + 5e-17),
    ],
)
def test_half_a_unit_of_the_last_printed_digit(text: str, low: float, high: float) -> None:
    assert printed_interval(text) == (low, high)


@given(radii)
def test_three_significant_digits_contain_the_true_radius(radius: float) -> None:
    text = f"{radius:.3}"
    low, high = printed_interval(text)
    assert 0 <= low <= radius <= high
    sharp_low, sharp_high = printed_interval(text, significant_digits=3)
    assert low <= sharp_low <= radius <= sharp_high <= high
    assert sharp_high - sharp_low <= 0.0101 * radius


@given(radii)
def test_three_decimals_contain_the_true_radius(radius: float) -> None:
    low, high = printed_interval(f"{radius:.3f}")
    assert 0 <= low <= radius <= high
    assert high - low <= 0.001 + 1e-12


@given(st.decimals(min_value=0, max_value=5, places=4), st.sampled_from([".3", ".3f"]))
def test_ties_of_the_rounding_are_contained(halfway: float, convention: str) -> None:
    radius = float(halfway)
    low, high = printed_interval(format(radius, convention))
    assert low <= radius <= high


@given(
    st.lists(st.tuples(radii, st.booleans()), min_size=1, max_size=20),
    st.sampled_from([".3", ".3f"]),
)
def test_a_printed_log_contains_what_was_printed(
    tmp_path_factory: pytest.TempPathFactory, images: list[tuple[float, bool]], convention: str
) -> None:
    lines = [
        f"{index}\t7\t{7 if right else 2}\t{radius:{convention}}\t{int(right)}\t1.0"
        for index, (radius, right) in enumerate(images)
    ]
    log = read_classic_log(write(tmp_path_factory.mktemp("log"), *lines))
    for row, (radius, right) in zip(log.rows, images, strict=True):
        assert row.correct == right
        assert row.low <= radius <= row.high


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15", 15.0), ("1:02:03", 3723.0), ("1 day, 0:00:01.5", 86401.5), ("2 days, 1:00:00", 176400)],
)
def test_times(tmp_path: Path, text: str, seconds: float) -> None:
    log = read_classic_log(write(tmp_path, f"3\t1\t1\t0.5\t1\t{text}"))
    assert log.rows[0].seconds == seconds


def test_time_may_be_missing_and_columns_may_move(tmp_path: Path) -> None:
    path = write(
        tmp_path, "0.25\t1\t7\t1\tx\t1", header="radius\tlabel\tidx\tcorrect\tnote\tpredict"
    )
    assert read_classic_log(path).rows == [
        ClassicRow(index=7, label=1, prediction=1, correct=True, low=0.245, high=0.255)
    ]


def test_blank_lines_carriage_returns_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_bytes(("\ufeff" + HEADER + "\r\n\r\n" + GOOD[0] + "\r\n\r\n").encode())
    assert [row.index for row in read_classic_log(path).rows] == [3]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("3\t1\t1\t0.5", "line 3: expected 6 fields separated by tabs, as in the header, got 4"),
        ("3\t1\t1\t0.5\t1\t1.0\t9", "line 3: expected 6 fields"),
        ("3 1 1 0.5 1 1.0", "line 3: expected 6 fields"),
        ("1\t1\t1\t0.5\t1\t1.0", "one row for each image, got index 1 twice"),
        ("3\t1\t1\t0.5\t0\t1.0", "line 3: correct: expected 1 for label 1 and predict 1, got '0'"),
        ("3\t1\t2\t0.5\t1\t1.0", "line 3: correct: expected 0 for label 1 and predict 2, got '1'"),
        ("3\t1\t-1\t0.0\t1\t1.0", "line 3: correct: expected 0"),
        ("3\t1\t1\t0.5\tyes\t1.0", "line 3: correct: expected 1"),
        ("3\t1\t1\t-0.5\t1\t1.0", "line 3: radius: expected a finite number, at least 0, got '-0."),
        ("3\t1\t1\tnan\t1\t1.0", "line 3: radius: expected a finite number, at least 0, got 'nan'"),
        ("3\t1\t1\tinf\t1\t1.0", "line 3: radius: expected a finite number, at least 0, got 'inf'"),
        ("3\t1\t1\t1e999\t1\t1.0", "line 3: radius: expected a finite number"),
        ("3\t1\t1\t\t1\t1.0", "line 3: radius: expected a finite number, at least 0, got ''"),
        ("3\t1\t1\t1_0\t1\t1.0", "line 3: radius: expected a finite number"),
        ("3\t1\t-1\t0.5\t0\t1.0", "line 3: radius: expected 0 for an abstention (predict -1), got"),
        ("-3\t1\t1\t0.5\t1\t1.0", "line 3: idx: expected a whole number, at least 0, got '-3'"),
        ("3.0\t1\t1\t0.5\t1\t1.0", "line 3: idx: expected a whole number"),
        ("3\t-1\t-1\t0.0\t0\t1.0", "line 3: label: expected a whole number, at least 0"),
        ("3\t1\t-2\t0.5\t0\t1.0", "line 3: predict: expected a whole number, at least -1"),
        ("3\t1\t1\t0.5\t1\tsoon", "line 3: time: expected"),
        ("3\t1\t1\t0.5\t1\t0:99:00", "line 3: time: expected"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, fault: str) -> None:
    path = write(tmp_path, "1\t1\t1\t0.5\t1\t1.0", line, "2\t1\t1\t0.5\t1\t1.0")
    assert fault in message(path)


@pytest.mark.parametrize(
    "header",
    ["idx\tlabel\tpredict\tcorrect\ttime", HEADER.replace("\t", ","), HEADER + "\tradius", GOOD[0]],
)
def test_missing_or_doubled_columns_are_refused(tmp_path: Path, header: str) -> None:
    said = message(write(tmp_path, *GOOD, header=header))
    assert "line 1: columns: expected idx, label, predict, radius, correct, each once" in said


def test_files_that_are_no_logs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    assert "got no such file" in message(path)
    assert "got a folder" in message(tmp_path)
    path.write_text("\n \n", encoding="utf-8")
    assert "got an empty file" in message(path)
    path.write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    assert "expected a text file" in message(path)
    assert "at least one image, got none" in message(write(tmp_path))


def test_a_log_made_by_hand_is_checked_too() -> None:
    row = ClassicRow(index=1, label=1, prediction=1, correct=True, low=0.5, high=0.5)
    with pytest.raises(BadInput, match="mine: expected one row for each image, got index 1 twice"):
        ClassicLog("mine", [row, row])


def test_text_of_another_format_is_refused(tmp_path: Path) -> None:
    said = message(write(tmp_path, "3\t1\t1\t0.500\t1\t1.0"), significant_digits=3)
    assert "line 2: radius: expected a number as format \".3\" prints it, got '0.500'" in said
    assert "significant_digits: expected at least 1" in message(tmp_path, significant_digits=0)


def test_the_limit_is_that_of_equal_votes() -> None:
    limit = largest_radius(sigma=0.5, n=100_000, alpha=0.001)
    assert limit == pytest.approx(0.5 * NormalDist().inv_cdf(0.001 ** (1 / 100_000)), rel=1e-8)
    assert largest_radius(sigma=None, n=None, alpha=None) == math.inf


def test_radii_beyond_the_votes_are_refused(tmp_path: Path) -> None:
    settings = {"sigma": 0.5, "n": 100_000, "alpha": 0.001}  # which allow 1.9057
    read_classic_log(write(tmp_path, "3\t1\t1\t1.91\t1\t1.0"), **settings)  # type: ignore[arg-type]
    path = write(tmp_path, GOOD[0], "3\t1\t1\t1.92\t1\t1.0")
    assert "line 3: radius: expected at most 1.906" in message(path, **settings)
    assert message(path, **settings).count("got 1.92; if the log's own differ") == 1
    unlucky = write(tmp_path, "3\t2\t1\t1.92\t0\t1.0")
    assert "line 2: radius" in message(unlucky, **settings), "a wrong answer's radius too"


def test_the_settings_come_together(tmp_path: Path) -> None:
    path = write(tmp_path, *GOOD)
    assert "expected all three or none, got no n and no alpha" in message(path, sigma=0.5)
    assert "sigma: expected a positive number" in message(path, sigma=-1.0, n=10, alpha=0.1)
    assert "alpha" in message(path, sigma=0.5, n=10, alpha=2.0)
    assert "n: expected at least 1" in message(path, sigma=0.5, n=0, alpha=0.1)


@needs_logs
@pytest.mark.parametrize("path", AUTHORS, ids=lambda path: path.stem)
def test_the_authors_logs(path: Path) -> None:
    log = read_classic_log(path, significant_digits=3, sigma=0.5, n=100_000, alpha=0.001)
    assert log.name == path.stem
    assert [row.index for row in log.rows] == list(range(888, 1888))
    assert all(row.seconds is not None and 0.1 < row.seconds < 60 for row in log.rows)
    with path.open(encoding="utf-8", newline="") as stream:
        raw = list(csv.DictReader(stream, delimiter="\t"))
    for row, text in zip(log.rows, raw, strict=True):
        assert row.correct == (text["label"] == text["predict"])
        assert row.low <= float(text["radius"]) <= row.high
        assert (row.high == 0) == (text["predict"] == "-1")


@needs_logs
@pytest.mark.parametrize("path", LOCUSLAB, ids=lambda path: path.stem)
def test_the_first_logs(path: Path) -> None:
    sigma = float(path.stem[-4:])
    log = read_classic_log(path, significant_digits=3, sigma=sigma, n=100_000, alpha=0.01)
    assert [row.index for row in log.rows] == list(range(0, 10_000, 20))
    assert all(row.seconds is not None and 10 < row.seconds < 30 for row in log.rows)


@needs_logs
def test_a_log_of_other_settings_than_it_claims_is_found() -> None:
    """Cohen et al.'s logs reach 3.91 sigma; n = 100,000 at alpha = .001 allows 3.81."""
    for path in LOCUSLAB[:2]:
        said = message(path, sigma=float(path.stem[-4:]), n=100_000, alpha=0.001)
        assert "radius: expected at most" in said
