"""A pickle gives arrays and plain values, or one line; it never runs anything."""

import builtins
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sween.data.safe_pickle import loads_plain
from sween.errors import DataError

from .conftest import Refuses

WHERE = "data_batch_1"
GOOD = pickle.dumps({"data": np.arange(300, dtype=np.uint8)}, 2)


class Call:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._parts = (function, arguments)

    def __reduce__(self) -> Any:
        return self._parts


def test_arrays_and_plain_values_come_back() -> None:
    for kind in ("uint8", "int64", ">i4", "float32", "bool"):
        array = np.arange(12).reshape(3, 4).astype(kind)
        found = loads_plain(pickle.dumps({"data": array}, 3), WHERE)["data"]
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype.newbyteorder("=")  # numpy reads into native order
    written = pickle.dumps(np.arange(5, dtype=np.uint8), 3)
    old = written.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert loads_plain(old, WHERE).tolist() == [0, 1, 2, 3, 4]
    python2 = b"\x80\x02}q\x00U\x04nameq\x01U\x03catq\x02s."
    assert loads_plain(python2, WHERE) == {b"name": b"cat"}
    value = {"a": [1, 2.5, None, True], "b": (b"x", "y")}
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
    for value in (call, {"labels": [1, (2, {"deep": call})]}):
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
        b"",
        b"not a pickle",
        b"Pname\n.",
        GOOD[:-200],
        GOOD[:-1],
        b"\x80\x09.",
        b"h\x07.",
        b"}(K\x01s.",
        b"\x80\x02]q\x00h\x00h\x00s.",
    ],
)
def test_hand_written_calls_and_malformed_pickles_are_refused(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(DataError, WHERE, "fetch the file again"):
        loads_plain(data, WHERE)
    assert list(tmp_path.iterdir()) == []
