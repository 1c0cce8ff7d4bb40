"""MACER's .mat files: which images, what is certified, and one clear line for each fault."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from sween.errors import BadInput
from sween.report.classic import ClassicRow
from sween.report.macer_mat import read_macer_mat

HARD = np.array([0.1 + 0.2, -1.0, 0.0, 1.9])
SOFT = np.array([0.25, 0.125, -1.0, -1.0])


def write(folder: Path, **variables: Any) -> Path:
    """A file as MACER's code leaves it: vectors by name."""
    path = folder / "440.mat"
    savemat(path, variables)
    return path


def message(path: Path, **options: Any) -> str:
    """What the reader says about a bad file, on one line."""
    with pytest.raises(BadInput) as caught:
        read_macer_mat(path, **({"start": 500} | options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def certified(index: int, radius: float | None) -> ClassicRow:
    reach = 0.0 if radius is None else radius
    return ClassicRow(
        index=index,
        label=None,
        prediction=None,
        correct=radius is not None,
        low=reach,
        high=reach,
    )


def test_every_digit_is_kept_and_the_images_are_the_ones_named(tmp_path: Path) -> None:
    log = read_macer_mat(write(tmp_path, hard=HARD, soft=SOFT), start=500)
    assert log.name == "440"
    assert log.rows == [
        certified(500, 0.1 + 0.2),
        certified(501, None),
        certified(502, 0.0),
        certified(503, 1.9),
    ]


def test_soft_votes_and_skipped_images(tmp_path: Path) -> None:
    log = read_macer_mat(write(tmp_path, hard=HARD, soft=SOFT), start=0, skip=20, votes="soft")
    assert [row.index for row in log.rows] == [0, 20, 40, 60]
    assert [row.high for row in log.rows] == [0.25, 0.125, 0.0, 0.0]
    assert [row.correct for row in log.rows] == [True, True, False, False]


@pytest.mark.parametrize("shape", [(1, 4), (4, 1)])
def test_rows_and_columns_are_read(tmp_path: Path, shape: tuple[int, int]) -> None:
    log = read_macer_mat(write(tmp_path, hard=HARD.reshape(shape)), start=7)
    assert [row.low for row in log.rows] == [0.1 + 0.2, 0.0, 0.0, 1.9]


def test_older_files_and_other_number_types_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.mat"
    savemat(path, {"hard": np.array([1, -1, 0], np.int32)}, format="4")
    assert [row.low for row in read_macer_mat(path, start=0).rows] == [1.0, 0.0, 0.0]
    single = write(tmp_path, hard=HARD.astype(np.float32))
    assert read_macer_mat(single, start=0).rows[3].low == float(np.float32(1.9))


@pytest.mark.parametrize("value", [-0.5, -2.0, np.nan, np.inf, -np.inf])
def test_values_that_are_no_radii_are_refused(tmp_path: Path, value: float) -> None:
    said = message(write(tmp_path, hard=np.array([0.5, value])))
    assert "hard, place 1 (index 501): expected a finite radius, at least 0, or -1" in said


def test_a_missing_variable_is_refused(tmp_path: Path) -> None:
    said = message(write(tmp_path, soft=SOFT))
    assert "expected a variable 'hard', as MACER's code names it, got soft" in said
    assert "--log-votes soft" in said
    assert "got no variables" in message(write(tmp_path))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.ones((2, 3)), "shape (2, 3) of float64"),
        (np.ones((1, 2, 3)), "shape (1, 2, 3) of float64"),
        (np.ones(3, complex), "no plain numbers"),
        ("0.5", "no plain numbers"),
        ({"radius": 1.0}, "no plain numbers"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, value: object, got: str) -> None:
    said = message(write(tmp_path, hard=value))
    assert f"hard: expected one row of real numbers, got {got}" in said


def test_no_images_are_refused(tmp_path: Path) -> None:
    assert "got shape (1, 0) of float64" in message(write(tmp_path, hard=np.zeros((1, 0))))
    assert "at least one image, got none" in message(write(tmp_path, hard=np.zeros((0, 0))))


def test_files_that_are_no_mat_files_are_refused(tmp_path: Path) -> None:
    assert "got no such file" in message(tmp_path / "none.mat")
    assert "got a folder" in message(tmp_path)
    path = write(tmp_path, hard=HARD)
    content = path.read_bytes()
    for kept in (0, 1, 60, 130, 150, len(content) - 8):
        path.write_bytes(content[:kept])
        assert f"{path}: expected" in message(path)
    path.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n" * 9, encoding="utf-8")
    assert "expected a .mat file of format 5 or older" in message(path)


def test_the_suffix_is_never_added(tmp_path: Path) -> None:
    write(tmp_path, hard=HARD)
    assert "got no such file" in message(tmp_path / "440")


def test_the_options_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path, hard=HARD)
    assert "start: expected at least 0, got -1" in message(path, start=-1)
    assert "skip: expected at least 1, got 0" in message(path, skip=0)
    assert "unknown votes 'medium'" in message(path, votes="medium")
    assert "expected all three or none, got no sigma" in message(path, n=10, alpha=0.1)


def test_radii_beyond_the_votes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, hard=HARD)
    assert len(read_macer_mat(path, start=0, sigma=0.5, n=100_000, alpha=0.001).rows) == 4
    said = message(path, sigma=0.25, n=100_000, alpha=0.001)
    assert "hard, place 3 (index 503): expected at most 0.9529" in said
