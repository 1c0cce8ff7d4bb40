"""The examples run, and print what they promise.

In this process, since importing torch takes longer than most of them; warnings are errors here too.
"""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT

EXAMPLES = ROOT / "examples"
PRINTED = {
    "audit.py": r"raised-radius: REFUSED[\s\S]*invented-votes: verified[\s\S]*REFUSED",
    "certify_own_module.py": r"index 0: class 3, radius 0\.\d+[\s\S]*average certified radius",
    "decide_radius.py": r"certified +\d+\n[\s\S]*noisy images in all",
    "mixed_ensemble.py": r"ensemble +certified at 0\.5: +\d+",
    "own_dataset.py": r"verified 30 rows",
}
TRAINING = {"certify_own_module.py", "mixed_ensemble.py"}
"""Run by `make test-all` alone, with the notebook."""

NOTEBOOK = EXAMPLES / "paper_in_small.ipynb"


def test_all_examples_are_run_and_listed() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files == {*PRINTED, NOTEBOOK.name}
    listed = re.findall(r"\]\((\S+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert files == {*listed}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in TRAINING else ())
        for name in sorted(PRINTED)
    ],
)
def test_an_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search(PRINTED[name], capsys.readouterr().out)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = [_kinds(cell) for cell in notebook.cells]
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=folder).execute()
    assert [_kinds(cell) for cell in notebook.cells] == before


def _kinds(cell: Any) -> set[str]:
    """Of a cell's outputs."""
    outputs = cell.get("outputs", ())
    return {kind for out in outputs for kind in (out.output_type, *out.get("data", ()))}


def test_the_notebook_is_stored_with_its_results() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    numbers = [cell.execution_count for cell in code]
    assert numbers == list(range(1, len(code) + 1))
    kinds = set[str]().union(*map(_kinds, code))
    assert "image/png" in kinds
    assert "error" not in kinds
    assert NOTEBOOK.stat().st_size < 300_000
