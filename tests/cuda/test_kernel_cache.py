"""Compiled kernels on disk: found again by what they were made from, never trusted blindly."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.cuda import _utils

from sween.cuda import compile_kernel
from sween.cuda.kernel_cache import KernelCode, kept_code
from sween.paths import CACHE_VARIABLE

MADE_FROM = {"source": "void f() {}", "options": ["-DA"], "capability": [9, 0], "torch": "2.13"}


class Compiler:
    """Gives other code each time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> KernelCode:
        self.calls += 1
        return KernelCode("_Z1fv", b"\x7fELF\n\x00code %d\n" % self.calls)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "compiled" / "kernels"


def test_a_second_process_finds_what_the_first_compiled(folder: Path) -> None:
    first, second = Compiler(), Compiler()
    known = kept_code(MADE_FROM, first)
    assert known == kept_code(MADE_FROM, second)
    assert (first.calls, second.calls) == (1, 0)
    assert [path.suffix for path in folder.iterdir()] == [".kernel"]


@pytest.mark.parametrize("key", MADE_FROM)
def test_whatever_differs_is_compiled_anew(folder: Path, key: str) -> None:
    compiler = Compiler()
    kept_code(MADE_FROM, compiler)
    other = kept_code({**MADE_FROM, key: "another"}, compiler)
    assert compiler.calls == 2
    assert kept_code({**MADE_FROM, key: "another"}, compiler) == other


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:-3],
    "longer": lambda content: content + b"!",
    "a bit": lambda content: content[:-2] + bytes([content[-2] ^ 1]) + content[-1:],
    "another name": lambda content: content.replace(b"_Z1fv", b"_Z1gv"),
    "not text": lambda content: b"\xff\xfe\n\xff\n" + content,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_compiled_anew_and_replaced(folder: Path, how: str) -> None:
    compiler = Compiler()
    kept_code(MADE_FROM, compiler)
    (file,) = folder.iterdir()
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    again = kept_code(MADE_FROM, compiler)
    assert compiler.calls == 2
    assert kept_code(MADE_FROM, compiler) == again
    assert compiler.calls == 2


def test_a_file_of_another_kernel_is_compiled_anew(folder: Path) -> None:
    compiler = Compiler()
    kept_code(MADE_FROM, compiler)
    (own,) = folder.iterdir()
    kept_code({**MADE_FROM, "source": "void g() {}"}, compiler)
    (other,) = set(folder.iterdir()) - {own}
    own.write_bytes(other.read_bytes())
    kept_code(MADE_FROM, compiler)
    assert compiler.calls == 3


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX alone has such modes")
@pytest.mark.parametrize("what", ["file of all", "folder of all", "another user"])
def test_a_file_that_others_could_have_written_is_not_used(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler()
    kept_code(MADE_FROM, compiler)
    (file,) = folder.iterdir()
    if what == "file of all":
        file.chmod(0o666)
    elif what == "folder of all":
        folder.chmod(0o777)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    kept_code(MADE_FROM, compiler)
    assert compiler.calls == 2


@pytest.mark.parametrize("what", ["a file in its place", "full disk"])
def test_a_cache_that_cannot_be_written_breaks_nothing(
    folder: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler()
    if what == "full disk":

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
    else:
        folder.parent.write_text("")
    assert kept_code(MADE_FROM, compiler).code == b"\x7fELF\n\x00code 1\n"
    if what == "full disk":
        assert list(folder.iterdir()) == [], "no rests"


def test_an_error_of_the_compiler_is_its_own(folder: Path) -> None:
    def fail() -> KernelCode:
        raise RuntimeError("no such instruction")

    with pytest.raises(RuntimeError, match="no such instruction"):
        kept_code(MADE_FROM, fail)
    assert not folder.exists()


@pytest.fixture
def fake_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch's private functions, without a GPU; returns what was called."""
    called: list[str] = []
    device = SimpleNamespace(major=9, minor=0)

    def nvrtc(source: str, name: str, *, nvcc_options: list[str]) -> tuple[bytes, str]:
        called.append("compile")
        if "wrong" in source:
            raise RuntimeError("Kernel compilation failed")
        return " ".join([source, *nvcc_options]).encode(), f"_Z{name}"

    def load(code: bytes, names: list[str]) -> dict[str, bytes]:
        called.append("load")
        return dict.fromkeys(names, code)

    def whole(source: str, name: str, *, nvcc_options: list[str]) -> str:
        called.append("torch alone")
        if "wrong" in source:
            raise RuntimeError("Kernel compilation failed")
        return "kernel"

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    monkeypatch.setattr(_utils, "_nvrtc_compile", nvrtc)
    monkeypatch.setattr(_utils, "_cuda_load_module", load)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", whole)
    return called


def test_a_kernel_is_compiled_once_and_loaded_each_time(fake_torch: list[str]) -> None:
    one, other = (compile_kernel("source", "name", ["-DSTAGE=1"]) for _ in range(2))
    assert one == other == b"source -DSTAGE=1 --std=c++17"
    assert fake_torch == ["compile", "load", "load"]
    compile_kernel("source", "name", ["-DSTAGE=2"])
    assert fake_torch[3:] == ["compile", "load"]


@pytest.mark.parametrize("what", ["_nvrtc_compile", "_cuda_load_module"])
def test_another_torch_whose_private_functions_differ_compiles_as_before(
    what: str, fake_torch: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(_utils, what)
    assert compile_kernel("source", "name") == "kernel"
    assert fake_torch[-1] == "torch alone"


def test_wrong_source_is_an_error(fake_torch: list[str]) -> None:
    with pytest.raises(RuntimeError, match="compilation failed"):
        compile_kernel("wrong", "name")
