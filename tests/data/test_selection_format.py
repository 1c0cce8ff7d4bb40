"""A recorded choice of images reads back to exactly those images, in that order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.data.selection import count_indices, format_indices, parse_indices
from sween.errors import BadInput


def read_back(text: str, size: int) -> list[int]:
    return parse_indices(indices=text, every=None, everything=False, size=size)


@given(st.lists(st.integers(0, 60), min_size=1, unique=True))
def test_any_positions_read_back_in_their_order(positions: list[int]) -> None:
    assert read_back(format_indices(positions), 61) == positions


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8, unique=True))
def test_distant_positions_read_back(positions: list[int]) -> None:
    assert read_back(format_indices(positions), 10**9 + 1) == positions


@given(st.integers(0, 500), st.integers(1, 40), st.integers(3, 60))
def test_a_progression_is_one_range(start: int, step: int, count: int) -> None:
    positions = list(range(start, start + step * count, step))
    text = format_indices(positions)
    assert "," not in text
    assert read_back(text, positions[-1] + 1) == positions, "a range stays inside its split"


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        (range(888, 1888), "888:1888"),
        (range(0, 10_000, 20), "0:9981:20"),
        ([5], "5"),
        ([0, 1], "0,1"),
        ([0, 5, 9], "0,5,9"),
        ([0, 1, 2], "0:3"),
        ([9, 8, 7], "9,8,7"),
        ([3, 1, 2], "3,1,2"),
        ([0, 1, 2, 10, 20, 30, 31], "0:3,10:31:10,31"),
        ([0, 5, 6, 7], "0,5:8"),
        ([], ""),
    ],
)
def test_written_forms(positions: list[int], text: str) -> None:
    assert format_indices(positions) == text


def test_a_whole_split_is_short() -> None:
    assert format_indices(range(10_000)) == "0:10000"


@given(st.lists(st.integers(0, 60), min_size=1, unique=True))
def test_positions_are_counted_without_being_listed(positions: list[int]) -> None:
    assert count_indices(format_indices(positions)) == len(positions)
    assert count_indices("0:999999999999999999,5") == 10**18


@pytest.mark.parametrize("text", ["", "x", "3,,4", "5:2", "-1", "1:2:3:4"])
def test_what_names_no_positions_is_not_counted(text: str) -> None:
    with pytest.raises(BadInput):
        count_indices(text)
