"""Emulators of the kernels, built once."""

import shutil

import pytest

from sween.engine.kernels.shape import Shape
from tests.engine.kernels.emulation import Emulator

SHAPES = [Shape(rows=2, images=2), Shape(rows=4, images=4)]


def compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    return compiler


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def any_emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulator"), compiler(), request.param)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulator"), compiler(), SHAPES[0])
