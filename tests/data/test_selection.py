"""--indices, --every and --all choose exactly the images that they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sween.data import parse_indices
from sween.errors import BadInput

from .conftest import Refuses


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
    assert parse_indices(indices=text, every=None, everything=False, size=2000) == positions


def test_every_starts_at_zero() -> None:
    positions = parse_indices(indices=None, every=20, everything=False, size=10_000)
    assert positions == list(range(0, 10_000, 20))


def test_all() -> None:
    assert parse_indices(indices=None, every=None, everything=True, size=7) == list(range(7))


@given(st.lists(st.integers(0, 99), min_size=1, unique=True))
def test_a_written_list_reads_back(positions: list[int]) -> None:
    text = ",".join(map(str, positions))
    assert parse_indices(indices=text, every=None, everything=False, size=100) == positions


@given(st.text(alphabet="0123456789:,- +x", max_size=12))
def test_any_text_gives_positions_of_the_split_or_one_line(text: str) -> None:
    message, positions = "positions", [0]
    try:
        positions = parse_indices(indices=text, every=None, everything=False, size=50)
    except BadInput as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    assert positions
    assert len(set(positions)) == len(positions)
    assert all(0 <= position < 50 for position in positions)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("an empty entry",)),
        ("1,,2", ("an empty entry",)),
        ("1,", ("an empty entry",)),
        ("100", ("a split of 100 images", "'100'", "at most 99")),
        ("90:101", ("a split of 100 images", "'90:101'", "within 0:100")),
        ("-1", ("'-1'", "count from 0")),
        ("5-9", ("'5-9'", "':'")),
        ("9:5", ("starts before it stops", "swap the ends: 5:9")),
        ("5:5", ("starts before it stops", "use 5:6")),
        ("a:b", ("'a:b'", "whole numbers")),
        ("1.5", ("'1.5'", "whole numbers")),
        (":10", ("':10'", "written out")),
        ("10:", ("'10:'", "written out")),
        ("0:9:2:1", ("'0:9:2:1'",)),
        ("٣", ("'٣'",)),
        ("9" * 5000, ("whole numbers",)),
        ("0:10:0", ("step of 1 or more", "use 0:10")),
        ("3,3", ("3 twice",)),
        ("0:10,5", ("5 twice",)),
    ],
)
def test_unusable_indices(text: str, parts: tuple[str, ...], refuses: Refuses) -> None:
    with refuses(BadInput, "--indices", *parts):
        parse_indices(indices=text, every=None, everything=False, size=100)


def test_nothing_given(refuses: Refuses) -> None:
    with refuses(BadInput, "exactly one of --indices, --every, --all", "none of them", "--all"):
        parse_indices(indices=None, every=None, everything=False, size=100)


@pytest.mark.parametrize(
    ("indices", "every", "everything", "got"),
    [
        ("0:5", 20, False, "--indices and --every"),
        ("", None, True, "--indices and --all"),
        (None, 20, True, "--every and --all"),
        ("0:5", 20, True, "--indices and --every and --all"),
    ],
)
def test_several_given(
    indices: str | None, every: int | None, everything: bool, got: str, refuses: Refuses
) -> None:
    with refuses(BadInput, got, "keep one"):
        parse_indices(indices=indices, every=every, everything=everything, size=100)


@pytest.mark.parametrize("every", [0, -3])
def test_unusable_every(every: int, refuses: Refuses) -> None:
    with refuses(BadInput, "--every", str(every), "use --every 20"):
        parse_indices(indices=None, every=every, everything=False, size=100)


def test_an_empty_split(refuses: Refuses) -> None:
    with refuses(BadInput, "got 0"):
        parse_indices(indices=None, every=None, everything=True, size=0)
