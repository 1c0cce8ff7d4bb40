"""The scripts in benchmarks/, as far as they run without a GPU."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


class Import(Protocol):
    def __call__(self, name: str) -> ModuleType: ...


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a benchmark by its name, as the scripts do with each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_every_cut_finds_its_primitive_in_the_kernels_of_every_precision(
    benchmark: Import,
) -> None:
    ablation, timing = benchmark("kernel_ablation"), benchmark("kernel_timing")
    for what in ablation.CUTS:
        for shape in timing.SHAPES.values():
            whole = ablation.cut_source("nothing", shape())
            assert (ablation.cut_source(what, shape()) != whole) == (what != "nothing")
