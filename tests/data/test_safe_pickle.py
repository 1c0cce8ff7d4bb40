"""A pickle gives arrays and plain values, or one line; it never runs anything."""

import builtins
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sween.data import safe_pickle
from sween.data.safe_pickle import loads_plain
from sween.errors import DataError

from .conftest import Refuses

WHERE = "data_batch_1"


class Call:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._parts = (function, arguments)

    def __reduce__(self) -> Any:
        return self._parts


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["uint8", "int64", ">i4", "float32", "bool", "complex64"])
def test_arrays_come_back(protocol: int, kind: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(kind)
    read = loads_plain(pickle.dumps({"data": array}, protocol), WHERE)["data"]
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype.newbyteorder("=")  # numpy reads into native order


def test_plain_values_of_any_age_come_back() -> None:
    for array in (np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(7), np.zeros((0, 2))):
        np.testing.assert_array_equal(loads_plain(pickle.dumps(array, 3), WHERE), array)
    written = pickle.dumps(np.arange(5, dtype=np.uint8), 2)
    old = written.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert loads_plain(old, WHERE).tolist() == [0, 1, 2, 3, 4]
    python2 = b"\x80\x02}q\x00U\x04nameq\x01U\x03catq\x02s."
    assert loads_plain(python2, WHERE) == {b"name": b"cat"}
    value = {"a": [1, 2.5, None, True], "b": (b"x", {3}, "y")}
    assert loads_plain(pickle.dumps(value), WHERE) == value


def marker_calls(marker: Path) -> list[Any]:
    script = f"open({str(marker)!r}, 'w')"
    return [
        Call(os.system, f"touch {marker}"),
        Call(builtins.eval, script),
        Call(builtins.exec, script),
        Call(builtins.open, str(marker), "w"),
        Call(subprocess.Popen, ["touch", str(marker)]),
        Call(builtins.__import__, "os"),
        Call(np.load, str(marker)),
        Call(np.fromfile, str(marker)),
    ]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("which", range(8))
def test_a_call_is_refused_and_not_made(
    which: int, protocol: int, tmp_path: Path, refuses: Refuses
) -> None:
    marker = tmp_path / "ran"
    call = marker_calls(marker)[which]
    for value in (call, {"data": np.zeros(3), "labels": [1, (2, {"deep": call})]}):
        with refuses(DataError, WHERE, "a reference to", "nothing in it was run", "fetch"):
            loads_plain(pickle.dumps(value, protocol), WHERE)
    assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",
        b"(S'touch ran'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch ran'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x09touch ran\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x13core.os.system.name\x93.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"c_codecs\ndecode\n.",
        b"c__builtin__\neval\n.",
    ],
)
def test_hand_written_calls_are_refused(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(DataError, WHERE, "a reference to"):
        loads_plain(data, WHERE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, "two", None], dtype=object),
        np.zeros(2, dtype=[("x", "i4"), ("y", "O")]),
        np.zeros(2, dtype=[("x", "i4")]),
        np.array(["text"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
)
def test_arrays_of_anything_but_numbers_are_refused(array: Any, refuses: Refuses) -> None:
    with refuses(DataError, WHERE, "numpy arrays of numbers"):
        loads_plain(pickle.dumps(array, 2), WHERE)


GOOD = pickle.dumps({"data": np.arange(300, dtype=np.uint8)}, 2)
FOUR = pickle.dumps(np.arange(4, dtype=np.uint8), 2)
TOO_SHORT = FOUR.replace(b"K\x04\x85", b"K\x7f\x85")
assert TOO_SHORT != FOUR


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a pickle",
        TOO_SHORT,
        GOOD[:-200],
        GOOD[:-1],
        b"\x80\x09.",
        b".",
        b"h\x07.",
        b"}(K\x01s.",
        b"\x80\x02]q\x00h\x00h\x00s.",
        b"Pname\n.",
        b"cnumpy\nndarray\n(I1000000000000\ntR.",
        b"c_codecs\nencode\n(Vx\nVzip\ntR.",
        b"c_codecs\nencode\n}S'x'\nI1\nsb.",
        b"cnumpy.core.multiarray\n_reconstruct\n(N}S'__call__'\nI1\nsttb.",
        b"cnumpy.core.multiarray\n_reconstruct\n(I1\n(I0\ntS'b'\ntR.",
    ],
)
def test_malformed_pickles_are_refused(data: bytes, refuses: Refuses) -> None:
    with refuses(DataError, WHERE, "fetch the file again"):
        loads_plain(data, WHERE)


def test_a_pickle_leaves_nothing_behind_on_the_reader(refuses: Refuses) -> None:
    before = {name: dict(vars(value)) for name, value in classes_of_the_reader().items()}
    for name in (b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy\nndarray\n"):
        for state in (b"}S'__call__'\nI1\nsb.", b"(N}S'__call__'\nI1\nstb."):
            with refuses(DataError, WHERE):
                loads_plain(name + state, WHERE)
    assert {name: dict(vars(value)) for name, value in classes_of_the_reader().items()} == before


def classes_of_the_reader() -> dict[str, type]:
    return {name: value for name, value in vars(safe_pickle).items() if isinstance(value, type)}


@pytest.mark.parametrize("position", range(0, len(GOOD), 7))
def test_a_flipped_byte_gives_a_value_or_one_line(position: int) -> None:
    data = bytearray(GOOD)
    data[position] ^= 0xFF
    message = "a value"
    try:
        loads_plain(bytes(data), WHERE)
    except DataError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
