"""No single character of a certificate's line can change unnoticed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sween.errors import CheckFailed
from sween.runs import verify_folder
from tests.cli.command import succeed
from tests.cli.conftest import Made
from tests.cli.forging import Forgery


@pytest.fixture
def one_row(made: Made, tmp_path: Path) -> Path:
    """A run of one row, so that thousands of its forgeries can be read in seconds."""
    folder = tmp_path / "run"
    succeed(f"certify {made.runs[1]} --indices 1 --n 200 --quiet --out {folder}")
    return folder


def changed_digits(line: bytes) -> Iterator[bytes]:
    for place, old in enumerate(line):
        for new in b"0123456789" if chr(old).isdigit() else b"":
            if new != old:
                yield line[:place] + bytes([new]) + line[place + 1 :]


def changed_characters(line: bytes) -> Iterator[bytes]:
    """Each one replaced, left out or doubled, the end of the line too."""
    for place, old in enumerate(line):
        before, after = line[:place], line[place + 1 :]
        yield before + after
        for new in {old ^ 1, ord(" "), ord("-"), ord("\n")} - {old}:
            yield before + bytes([new]) + after


def assert_found(folder: Path, forgeries: Iterator[bytes]) -> int:
    path = folder / "certificates.jsonl"
    count = 0
    for count, forged in enumerate(forgeries, start=1):  # noqa: B007
        path.write_bytes(forged)
        with pytest.raises(CheckFailed) as caught:
            verify_folder(folder)
        assert "certificates.jsonl" in str(caught.value), forged
    return count


@pytest.mark.slow
def test_every_other_digit_at_every_place(one_row: Path) -> None:
    line = (one_row / "certificates.jsonl").read_bytes()
    assert verify_folder(one_row).rows == 1
    assert assert_found(one_row, changed_digits(line)) > 1000


@pytest.mark.slow
def test_every_character_replaced_or_left_out(one_row: Path) -> None:
    line = (one_row / "certificates.jsonl").read_bytes()
    assert assert_found(one_row, changed_characters(line)) > 3000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # One float in two spellings, which no checksum of values tells apart.
        (b'"sigma": 0.5,', b'"sigma": 0.50,'),
        # A reader that takes the first value would see another radius.
        (b'"radius": ', b'"radius": 9.0, "radius": '),
    ],
)
def test_other_text_for_the_same_values(old: bytes, new: bytes, forgery: Forgery) -> None:
    forgery.path.write_bytes(forgery.path.read_bytes().replace(old, new, 1))
    assert "line 1 (index 0): the text is not as sween" in forgery.refused()
