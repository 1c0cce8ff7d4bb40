"""Tables and the page need no matplotlib; the figures are left out, and a line says so."""

import sys
from pathlib import Path

import pytest

from sween.report import write_report
from tests.report.folders import (
    WITH_MEMBERS,
    ensemble_rows,
    write_attacked,
    write_run,
    write_trained,
)

LINE = "they need matplotlib, which is not installed; pip install 'sween[report]'"


def test_a_report_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", ensemble_rows(), **WITH_MEMBERS)
    folders = [run, write_attacked(tmp_path / "attack"), write_trained(tmp_path / "net")]
    whole = write_report(folders, tmp_path / "whole").read_text()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it now fails
    with pytest.warns(UserWarning, match="Figures are left out"):
        without = write_report(folders, tmp_path / "out").read_text()
    # As with matplotlib, but for the figures, the lines that show them and one that says so.
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        name for name in names if not name.endswith((".png", ".svg"))
    }
    assert {"report.md", "report.html", "table.csv", "attacks.csv", "cost.tex"} < names
    assert without.count(LINE) == 1
    figures = ("![", "The same figure as", "## What the networks see")
    kept = [line for line in whole.splitlines() if line and not line.startswith(figures)]
    assert [line for line in without.splitlines() if line and LINE not in line] == kept
    for file in ("report.html", "table.csv"):
        assert (tmp_path / "out" / file).read_text() == (tmp_path / "whole" / file).read_text()


def test_a_report_without_runs_misses_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = write_report([write_trained(tmp_path / "net")], tmp_path / "out").read_text()
    assert "matplotlib" not in text  # and there was no warning
