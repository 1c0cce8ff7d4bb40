"""Files of rows: a kill or a full disk costs at most the row being written."""

import errno
import gzip
import json
import lzma
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sween.errors import BadInput
from sween.records import CERTIFICATES, RowWriter, read_certificates, read_rows, rows_file, to_row

from .test_records import SAMPLE

ROWS: list[dict[str, Any]] = [{"index": number, "radius": number / 7} for number in range(3)]


def written(path: Path, rows: list[dict[str, Any]] = ROWS) -> bytes:
    with RowWriter(path) as writer:
        writer.append(rows)
    return path.read_bytes()


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with RowWriter(path) as writer:
        writer.append(ROWS[:1])
        assert read_rows(path) == ROWS[:1], "a row is on disk when append returns"
        writer.append(ROWS[1:])
        writer.append([])
    assert read_rows(path) == ROWS
    with RowWriter(path) as writer:
        writer.append(ROWS)
    assert read_rows(path) == ROWS * 2


@pytest.mark.parametrize("text", ["a\nb\r\n", "é\u2028\x85", "\x00\x1f\x7f", '"\\', "\ud800"])
def test_any_text_stays_on_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    encoded = written(path, [{"model": text, text: 1}])
    assert encoded.count(b"\n") == 1
    assert encoded.isascii(), "a truncated row could otherwise end inside a character"
    assert read_rows(path) == [{"model": text, text: 1}]


@pytest.mark.parametrize("count", [1, 3])
def test_every_truncation_of_the_last_line_is_ignored_and_removed(
    count: int, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    whole = written(path, ROWS[:count])
    RowWriter(path).close()
    assert path.read_bytes() == whole, "a whole file is left alone"
    kept = whole[: whole[:-1].rfind(b"\n") + 1]
    for cut in range(len(kept), len(whole)):
        path.write_bytes(whole[:cut])
        assert read_rows(path) == ROWS[: count - 1], f"cut at byte {cut}"
        RowWriter(path).close()
        assert path.read_bytes() == kept, f"cut at byte {cut}"
        assert written(path, ROWS[count - 1 : count]) == whole, f"cut at byte {cut}"


PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_rows_are_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"certificates.jsonl.{suffix}"
    rows = [to_row(SAMPLE)] * 2
    path.write_bytes(PACK[suffix](b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
    assert read_rows(path) == rows
    assert read_certificates(path) == [SAMPLE] * 2
    assert read_certificates(tmp_path) == [SAMPLE] * 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not gzip", "crc"])
def test_damaged_compressed_rows_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "certificates.jsonl.gz"
    packed = bytearray(gzip.compress(b'{"index": 1}\n' * 200, mtime=0))
    if damage == "truncated":
        del packed[-9:]
    elif damage == "flipped":
        packed[10] = 0xFF  # the first deflate block gets a type that does not exist
    elif damage == "crc":
        packed[-8] ^= 1
    else:
        packed = bytearray(b'{"index": 1}\n')
    path.write_bytes(packed)
    with pytest.raises(BadInput, match=r"certificates\.jsonl\.gz: expected .*gzip"):
        read_rows(path)


def test_xz_files_of_several_streams_are_read_whole(tmp_path: Path) -> None:
    path, streams = (
        tmp_path / "rows.jsonl.xz",
        [lzma.compress(b'{"index": %d}\n' % i) for i in (1, 2)],
    )
    for between in (b"", bytes(8)):
        path.write_bytes(between.join(streams) + between)
        assert [row["index"] for row in read_rows(path)] == [1, 2]
    one, two = streams
    for damaged in (
        one + b"\1" + two[1:],
        one + b'{"index": 2}\n',
        one + bytes(3) + two,
        one + two[:9],
    ):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match="expected a complete xz file"):
            read_rows(path)
    path.write_bytes(lzma.compress(b'{"index": 1}\n', lzma.FORMAT_ALONE))
    with pytest.raises(BadInput, match="expected a complete xz file"):
        read_rows(path)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not xz"])
def test_damaged_xz_files_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "certificates.jsonl.xz"
    packed = bytearray(lzma.compress(b'{"index": 1}\n' * 200))
    if damage == "truncated":
        del packed[-9:]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 1
    else:
        packed = bytearray(b'{"index": 1}\n')
    path.write_bytes(packed)
    with pytest.raises(BadInput, match=r"certificates\.jsonl\.xz: expected a complete xz file"):
        read_rows(path)


@pytest.mark.parametrize(
    "line",
    [
        b'{"index": 1, "radius": 0.5',
        b'{"index": 1} {"index": 2}',
        b"",
        b"[1, 2]",
        b"7",
        b'{"radius": NaN}',
        b'{"radius": -Infinity}',
        b'{"seconds": 1e999}',
        b'{"index": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"model": "\xff"}',
        b"\x00",
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    whole = written(path).splitlines()
    path.write_bytes(b"\n".join([whole[0], line, whole[2]]) + b"\n")
    with pytest.raises(BadInput, match=r"rows\.jsonl, line 2: expected") as caught:
        read_rows(path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500 + len(str(path))


def test_a_row_that_is_not_a_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "certificates.jsonl"
    written(path, [to_row(SAMPLE), {**to_row(SAMPLE), "radius": "0.5"}])
    with pytest.raises(BadInput, match=r"certificates\.jsonl, line 2: values.*radius '0\.5'"):
        read_certificates(tmp_path)


def test_a_full_disk_leaves_no_part_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    before = written(path, ROWS[:1])
    real_write = os.write
    calls = 0

    def fail_midway(descriptor: int, content: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, content[: len(content) // 2 + 3])

    with RowWriter(path) as writer:
        monkeypatch.setattr(os, "write", fail_midway)
        with pytest.raises(OSError, match="No space left") as caught:
            writer.append(ROWS[1:])
        monkeypatch.undo()
        assert caught.value.errno == errno.ENOSPC
        assert calls == 2
        assert path.read_bytes() == before
        writer.append(ROWS[1:])
    assert read_rows(path) == ROWS, "the same writer continues once there is space again"


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    real_write = os.write
    monkeypatch.setattr(
        os, "write", lambda descriptor, content: real_write(descriptor, content[:5])
    )
    written(path)
    monkeypatch.undo()
    assert read_rows(path) == ROWS


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_lacks_are_not_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "rows.jsonl"
    with RowWriter(path) as writer, pytest.raises(ValueError, match="JSON compliant"):
        writer.append([{"radius": 1.0}, {"radius": value}])
    assert path.read_bytes() == b"", "none of the rows of that call"


def test_plain_rows_take_precedence_and_missing_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="got neither"):
        read_certificates(tmp_path)
    with pytest.raises(BadInput, match="got no such folder"):
        read_certificates(tmp_path / "absent")
    for name in (f"{CERTIFICATES}.xz", CERTIFICATES):
        (tmp_path / name).touch()
        assert rows_file(tmp_path, CERTIFICATES) == tmp_path / name
    (tmp_path / CERTIFICATES).unlink()
    (tmp_path / f"{CERTIFICATES}.gz").touch()
    with pytest.raises(BadInput, match=r"one file of rows, got certificates\.jsonl\.gz and .*xz"):
        rows_file(tmp_path, CERTIFICATES)


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with RowWriter(path), pytest.raises(BadInput, match=r"rows\.jsonl.*another process"):
        RowWriter(path)
    with RowWriter(path):
        pass
