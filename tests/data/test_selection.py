"""Indices, every k-th image or all: the images they name, and how a selection is recorded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.data.selection import count_indices, format_indices, parse_indices
from sween.errors import BadInput

from .conftest import Refuses


def chosen(text: str, size: int) -> list[int]:
    return parse_indices(indices=text, every=None, everything=False, size=size)


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("888:1888", list(range(888, 1888))),
        ("0,5,9", [0, 5, 9]),
        ("0:10,50", [*range(10), 50]),
        ("0:100:5", list(range(0, 100, 5))),
        (" 3 , 1:3 ", [3, 1, 2]),
        ("1999", [1999]),
        ("0:2000", list(range(2000))),
    ],
)
def test_indices(text: str, positions: list[int]) -> None:
    assert chosen(text, 2000) == positions


def test_every_starts_at_zero_and_all_is_all() -> None:
    assert parse_indices(indices=None, every=20, everything=False, size=45) == [0, 20, 40]
    assert parse_indices(indices=None, every=None, everything=True, size=7) == list(range(7))


@given(st.text(alphabet="0123456789:,- +x", max_size=12))
def test_any_text_gives_positions_of_the_split_or_one_line(text: str) -> None:
    message, positions = "positions", [0]
    try:
        positions = chosen(text, 50)
    except BadInput as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    assert positions
    assert len(set(positions)) == len(positions)
    assert all(0 <= position < 50 for position in positions)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("100", ("a split of 100 images", "'100'", "below 100")),
        ("90:101", ("a split of 100 images", "'90:101'", "below 100")),
        *((text, ("starts before it stops", repr(text))) for text in ("9:5", "5:5", "0:10:0")),
        *(
            (text, (repr(text.partition(",")[2]), "whole numbers"))
            for text in ("1,", "1,-1", "1,5-9", "1,a:b", "1,1.5", "1,:10", "1,10:", "1,0:9:2:1")
        ),
        *((text, ("positions such as", "whole numbers")) for text in ("", "1,,2", "٣", "9" * 5000)),
        ("3,3", ("3 twice",)),
        ("0:10,5", ("5 twice",)),
    ],
)
def test_unusable_indices(text: str, parts: tuple[str, ...], refuses: Refuses) -> None:
    with refuses(BadInput, "indices", *parts):
        chosen(text, 100)
    if "twice" not in parts[0] and "split" not in parts[0]:
        with pytest.raises(BadInput):
            count_indices(text)


@pytest.mark.parametrize(
    ("indices", "every", "everything", "size", "parts"),
    [
        (None, None, False, 100, ("exactly one of `indices`", "got none of them")),
        ("", None, True, 100, ("`indices` and `everything`", "keep one")),
        ("0:5", 20, True, 100, ("`indices` and `every` and `everything`", "keep one")),
        (None, 0, False, 100, ("every", "got 0", "use `every=20`")),
        (None, None, True, 0, ("got 0",)),
    ],
)
def test_other_combinations_are_refused(
    indices: str | None,
    every: int | None,
    everything: bool,
    size: int,
    parts: tuple[str, ...],
    refuses: Refuses,
) -> None:
    with refuses(BadInput, *parts):
        parse_indices(indices=indices, every=every, everything=everything, size=size)


@given(
    st.lists(st.integers(0, 60), min_size=1, unique=True)
    | st.lists(st.integers(0, 10**9), min_size=1, max_size=8, unique=True)
)
def test_any_positions_read_back_in_their_order(positions: list[int]) -> None:
    text = format_indices(positions)
    assert chosen(text, max(positions) + 1) == positions, "a range stays inside its split"
    assert count_indices(text) == len(positions)


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        (range(888, 1888), "888:1888"),
        (range(0, 10_000, 20), "0:9981:20"),
        ([0, 5, 9], "0,5,9"),
        ([9, 8, 7], "9,8,7"),
        ([3, 1, 2], "3,1,2"),
        ([0, 1, 2, 10, 20, 30, 31], "0:3,10:31:10,31"),
        ([0, 5, 6, 7], "0,5:8"),
        ([], ""),
    ],
)
def test_written_forms(positions: list[int], text: str) -> None:
    assert format_indices(positions) == text


def test_positions_are_counted_without_being_listed() -> None:
    assert count_indices("0:999999999999999999,5") == 10**18
