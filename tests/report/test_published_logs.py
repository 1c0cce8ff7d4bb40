"""Published logs: rounding as intervals, and one clear line for each fault."""

import csv
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat

from sween.errors import BadInput
from sween.records import ABSTAIN
from sween.report.published_logs import (
    CertificationLog,
    largest_radius,
    printed_interval,
    read_macer_log,
    read_tsv_log,
)
from tests.report.folders import LOG_HEAD

LOGS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "logs"
AUTHORS = sorted(LOGS.glob("sween-authors/*.tsv"))
LOCUSLAB = sorted(LOGS.glob("locuslab/*.tsv"))

GOOD = ("3\t1\t1\t0.0838\t1\t15.4", "4\t2\t-1\t0.0\t0\t0:00:02.994643", "9\t0\t5\t1.8\t0\t")
HARD = np.array([0.1 + 0.2, -1.0, 0.0, 1.9])
SOFT = np.array([0.25, 0.125, -1.0, -1.0])

radii = st.floats(min_value=0, max_value=20, allow_subnormal=False)


def write(folder: Path, *lines: str, header: str = LOG_HEAD) -> Path:
    path = folder / "published.tsv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def write_mat(folder: Path, **variables: Any) -> Path:
    savemat(folder / "440.mat", variables)
    return folder / "440.mat"


def message(path: Path, **options: Any) -> str:
    """What the reader says about a bad file, on one line."""
    read: Any = read_tsv_log
    if path.suffix == ".mat" or "start" in options:
        read, options = read_macer_log, {"start": 500, **options}
    with pytest.raises(BadInput) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def columns(log: CertificationLog) -> list[Any]:
    arrays = log.indices, log.labels, log.predictions, log.correct, log.low, log.high
    return [None if array is None else array.tolist() for array in arrays]


@pytest.mark.parametrize(("digits", "last"), [(None, [1.75, 1.85]), (3, [1.795, 1.805])])
def test_text_is_read_with_its_rounding(
    tmp_path: Path, digits: int | None, last: list[float]
) -> None:
    """Three significant digits sharpen "1.8", which stands for 1.80."""
    log = read_tsv_log(write(tmp_path, *GOOD), significant_digits=digits)
    assert log.name == "published"
    assert columns(log) == [
        [3, 4, 9],
        [1, 2, 0],
        [1, ABSTAIN, 5],
        [True, False, False],
        [0.08375, 0.0, last[0]],
        [0.08385, 0.0, last[1]],
    ]


def test_columns_may_move_and_blank_lines_and_byte_order_marks_do_not_matter(
    tmp_path: Path,
) -> None:
    header = "radius\tlabel\tidx\tcorrect\tnote\tpredict"
    path = write(tmp_path, "0.25\t1\t7\t1\tx\t1", header=header)
    assert columns(read_tsv_log(path)) == [[7], [1], [1], [True], [0.245], [0.255]]
    path.write_bytes(("\ufeff" + LOG_HEAD + "\r\n\r\n" + GOOD[0] + "\r\n\r\n").encode())
    assert read_tsv_log(path).indices.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("0.000", 0.0, 0.0005),
        ("0.5", 0.45, 0.55),
        ("0", 0.0, 0.5),
        ("5.13e-05", 5.125e-05, 5.135e-05),
        ("1e+01", 5.0, 15.0),
    ],
)
def test_half_a_unit_of_the_last_printed_digit(text: str, low: float, high: float) -> None:
    assert printed_interval(text) == (low, high)


@given(st.one_of(radii, st.decimals(0, 5, places=4).map(float)))
def test_intervals_contain_what_was_printed(radius: float) -> None:
    """Ties of the rounding, four decimals, included."""
    low, high = printed_interval(f"{radius:.3f}")
    assert 0 <= low <= radius <= high
    assert high - low <= 0.001 + 1e-12
    low, high = printed_interval(f"{radius:.3}")
    sharp_low, sharp_high = printed_interval(f"{radius:.3}", significant_digits=3)
    assert 0 <= low <= sharp_low <= radius <= sharp_high <= high
    assert sharp_high - sharp_low <= 0.0101 * radius


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("3\t1\t1\t0.5", "line 3: expected 6 fields, got 4"),
        ("1\t1\t1\t0.5\t1\t1.0", "one row per image, got index 1 2 times"),
        ("3\t1\t1\t0.5\t0\t1.0", "line 3: correct: expected 1 for label=1 and prediction=1"),
        ("3\t1\t2\t0.5\t1\t1.0", "line 3: correct: expected 0 for label=1 and prediction=2"),
        ("3\t1\t1\t0.5\tyes\t1.0", "line 3: correct: expected 1"),
        *[
            (f"3\t1\t1\t{text}\t1\t1.0", f"line 3: radius: expected a finite number {got}")
            for text in ("-0.5", "nan", "inf", "1e999", "", "1_0")
            for got in [f"of at least 0, got '{text}'"]
        ],
        ("3\t1\t-1\t0.5\t0\t1.0", "line 3: radius: expected 0 for an abstention (predict -1)"),
        ("-3\t1\t1\t0.5\t1\t1.0", "line 3: idx: expected a whole number of at least 0, got '-3'"),
        ("3.0\t1\t1\t0.5\t1\t1.0", "line 3: idx: expected a whole number"),
        ("3\t-1\t-1\t0.0\t0\t1.0", "line 3: label: expected a whole number of at least 0"),
        ("3\t1\t-2\t0.5\t0\t1.0", "line 3: predict: expected a whole number of at least -1"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, fault: str) -> None:
    path = write(tmp_path, "1\t1\t1\t0.5\t1\t1.0", line, "2\t1\t1\t0.5\t1\t1.0")
    assert fault in message(path)


def test_files_that_are_not_logs_are_refused(tmp_path: Path) -> None:
    for header in ("idx\tlabel\tpredict\tcorrect", LOG_HEAD.replace("\t", ","), GOOD[0]):
        assert "line 1: columns: expected idx" in message(write(tmp_path, *GOOD, header=header))
    assert "each once" in message(write(tmp_path, *GOOD, header=LOG_HEAD + "\tradius"))
    assert "at least one image, got none" in message(write(tmp_path))
    path = tmp_path / "log.tsv"
    path.write_text("\n \n", encoding="utf-8")
    assert "got an empty file" in message(path)
    path.write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    assert "expected a text file" in message(path)


def test_text_of_another_format_is_refused(tmp_path: Path) -> None:
    said = message(write(tmp_path, "3\t1\t1\t0.500\t1\t1.0"), significant_digits=3)
    assert "line 2: radius: expected a number as format \".3\" prints it, got '0.500'" in said
    assert "significant_digits: expected at least 1" in message(tmp_path, significant_digits=0)


def test_radii_beyond_the_votes_are_refused(tmp_path: Path) -> None:
    limit = largest_radius(sigma=0.5, n=100_000, alpha=0.001)
    assert limit == pytest.approx(0.5 * NormalDist().inv_cdf(0.001 ** (1 / 100_000)), rel=1e-8)
    read_tsv_log(write(tmp_path, "3\t1\t1\t1.91\t1\t1.0"), limit=limit)
    path = write(tmp_path, GOOD[0], "3\t1\t1\t1.92\t1\t1.0")
    assert "line 3: radius: expected at most 1.906, " in message(path, limit=limit)
    assert "got 1.92; if the log has others, pass `LogFormat.sigma`" in message(path, limit=limit)
    wrong = write(tmp_path, "3\t2\t1\t1.92\t0\t1.0")
    assert "line 2: radius" in message(wrong, limit=limit), "a wrong answer's radius too"
    mat = write_mat(tmp_path, hard=HARD)
    assert read_macer_log(mat, start=0, limit=limit).indices.size == 4
    said = message(mat, limit=largest_radius(sigma=0.25, n=100_000, alpha=0.001))
    assert "hard[3] (index 503): expected at most 0.9529" in said


@pytest.mark.parametrize("shape", [(1, 4), (4, 1)])
def test_mat_files_keep_every_digit(tmp_path: Path, shape: tuple[int, int]) -> None:
    log = read_macer_log(write_mat(tmp_path, hard=HARD.reshape(shape), soft=SOFT), start=500)
    certified, reach = [True, False, True, True], [0.1 + 0.2, 0.0, 0.0, 1.9]
    assert log.name == "440"
    assert columns(log) == [[500, 501, 502, 503], None, None, certified, reach, reach]


def test_soft_votes_skipped_images_and_other_number_types(tmp_path: Path) -> None:
    path = write_mat(tmp_path, hard=HARD, soft=SOFT.astype(np.float32))
    log = read_macer_log(path, start=0, skip=20, votes="soft")
    assert log.indices.tolist() == [0, 20, 40, 60]
    assert log.high.tolist() == [0.25, 0.125, 0.0, 0.0]
    savemat(path, {"hard": np.array([1, -1, 0], np.int32)}, format="4")
    assert read_macer_log(path, start=0).low.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "got"),
    [
        *(
            (np.array([0.5, bad]), "hard[1] (index 501): expected a finite radius of at least 0")
            for bad in (-0.5, np.nan, np.inf)
        ),
        (np.ones((2, 3)), "got shape (2, 3) of float64"),
        (np.ones((1, 2, 3)), "got shape (1, 2, 3) of float64"),
        (np.ones(3, complex), "one row of real numbers, got"),
        ("0.5", "one row of real numbers, got"),
        (np.zeros((1, 0)), "got shape (1, 0) of float64"),
        (np.zeros((0, 0)), "at least one image, got none"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, value: object, got: str) -> None:
    assert got in message(write_mat(tmp_path, hard=value))


def test_files_that_are_not_mat_files_are_refused(tmp_path: Path) -> None:
    path = write_mat(tmp_path, hard=HARD)
    content = path.read_bytes()
    for kept in (0, 1, 60, 130, 150, len(content) - 8):
        path.write_bytes(content[:kept])
        assert f"{path}: expected" in message(path)
    path.write_text(f"{LOG_HEAD}\n" * 9, encoding="utf-8")
    assert "expected a .mat file" in message(path)


def test_the_options_of_mat_files_are_checked(tmp_path: Path) -> None:
    path = write_mat(tmp_path, soft=SOFT)
    assert "expected a variable 'hard', as MACER writes it, got soft; pass" in message(path)
    assert "start: expected at least 0, got -1" in message(path, start=-1)
    assert "skip: expected at least 1, got 0" in message(path, skip=0)
    assert "expected a variable 'medium'" in message(path, votes="medium")


@pytest.mark.skipif(not (AUTHORS and LOCUSLAB), reason="published logs not here")
@pytest.mark.parametrize("path", [*AUTHORS, *LOCUSLAB], ids=lambda path: path.stem)
def test_real_logs(path: Path) -> None:
    """Cohen et al.'s reach 3.91 sigma; n = 100,000 at alpha = .001 allows 3.81."""
    alpha, sigma = (0.001, 0.5) if path in AUTHORS else (0.01, float(path.stem[-4:]))
    limit = largest_radius(sigma=sigma, n=100_000, alpha=alpha)
    log = read_tsv_log(path, significant_digits=3, limit=limit)
    expected = range(888, 1888) if path in AUTHORS else range(0, 10_000, 20)
    assert log.indices.tolist() == list(expected)
    with path.open(encoding="utf-8", newline="") as stream:
        raw = list(csv.DictReader(stream, delimiter="\t"))
    printed, declined = (np.array([row[name] for row in raw]) for name in ("radius", "predict"))
    assert log.correct.tolist() == [row["label"] == row["predict"] for row in raw]
    assert np.all((log.low <= printed.astype(float)) & (printed.astype(float) <= log.high))
    assert np.array_equal(log.high == 0, declined == "-1")
    if path in LOCUSLAB[:2]:
        too_low = largest_radius(sigma=sigma, n=100_000, alpha=0.001)
        assert "radius: expected at most" in message(path, limit=too_low)
