"""Emulators of the kernels, built once, and what the GPU's compiler says of them."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from sween.engine import backends, in_integers
from sween.engine.kernels.shape import IntegerShape, Shape, WideIntegerShape, WideShape
from sween.engine.kernels.source import read_source
from tests.engine.kernels.emulation import Emulator

SHAPES = [Shape(rows=2, images=2), Shape(rows=4, images=4)]
WIDE_SHAPES = [WideShape(width=2), WideShape(width=3)]
INTEGER_SHAPES = [
    IntegerShape(rows=2, images=2),
    pytest.param(IntegerShape(rows=4, images=4), marks=pytest.mark.slow),
]
WIDE_INTEGER_SHAPES = [
    WideIntegerShape(width=3),  # its channels are padded
    pytest.param(WideIntegerShape(width=2), marks=pytest.mark.slow),
    pytest.param(WideIntegerShape(width=4), marks=pytest.mark.slow),
]


def compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    return compiler


def spills(folder: Path, shape: Shape, stage: int, architecture: str = "sm_90") -> bool:
    """Whether a kernel needs more registers than there are."""
    source, definitions = read_source(shape.files), shape.definitions(stage)
    return source_spills(folder, source, definitions, architecture)


def source_spills(
    folder: Path, source: str, definitions: Sequence[str], architecture: str = "sm_90"
) -> bool:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    path = folder / "kernels.cu"
    path.write_text(source, encoding="utf-8")
    options = [f"-arch={architecture}", "-std=c++17", "-Xptxas", "-v", *definitions]
    command = [nvcc, *options, "-cubin", "-o", str(folder / "out"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return not re.search(r"\b0 bytes spill stores, 0 bytes spill loads", done.stderr)


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> list[Emulator]:
    """One for each shape."""
    return [Emulator(tmp_path_factory.mktemp("emulator"), compiler(), shape) for shape in SHAPES]


@pytest.fixture(params=range(len(SHAPES)), ids=[str(shape) for shape in SHAPES])
def any_emulator(request: pytest.FixtureRequest, emulators: list[Emulator]) -> Emulator:
    return emulators[int(request.param)]


@pytest.fixture(scope="session", params=WIDE_SHAPES, ids=str)
def wide_emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Emulator:
    """Of the kernels for networks with more channels, in float16."""
    return Emulator(tmp_path_factory.mktemp("emulator"), compiler(), request.param)


@pytest.fixture(scope="session", params=INTEGER_SHAPES, ids=str)
def integer_emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Emulator:
    """Of the kernels in 8-bit integers."""
    return Emulator(tmp_path_factory.mktemp("emulator"), compiler(), request.param)


@pytest.fixture(scope="session", params=WIDE_INTEGER_SHAPES, ids=str)
def wide_integer_emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Emulator:
    """Of the kernels for wide networks in 8-bit integers."""
    return Emulator(tmp_path_factory.mktemp("emulator"), compiler(), request.param)


@pytest.fixture
def emulator(emulators: list[Emulator]) -> Emulator:
    return emulators[0]


@pytest.fixture
def with_kernels(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are prepared as on a GPU, with the emulated kernels."""
    for own in (backends, in_integers):
        monkeypatch.setattr(own, "supports", lambda device, shape=None: True)
        monkeypatch.setattr(own, "launcher", lambda device, shape: emulator)
