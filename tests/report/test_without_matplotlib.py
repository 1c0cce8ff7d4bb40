"""Tables and the page need no matplotlib; the figures are left out, and a line says so."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sween.report import write_report
from tests.report.folders import write_trained

LINE = "they need matplotlib, which is not installed; pip install 'sween[report]'"

BLOCKED = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "matplotlib":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Blocker())
    from sween.cli import main

    sys.exit(main(sys.argv[1:]))
"""


def sween(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`sween ARGUMENTS` where matplotlib is not installed."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BLOCKED), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_report_without_matplotlib(tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "results"  # another process checks the votes
    folders = [results / "digits-demo", results / "attacks" / "standard-sween3"]
    folders.append(write_trained(tmp_path / "net"))
    done = sween("report", *folders, "--different-images", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("sween: warning: Figures are left out")
    assert LINE in line
    whole = write_report(folders, tmp_path / "whole", different_images=True).read_text()
    # As with matplotlib, but for the figures, the lines that show them and one that says so.
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        name for name in names if not name.endswith((".png", ".svg"))
    }
    assert {"report.md", "report.html", "table.csv", "attacks.csv", "cost.tex"} < names
    without = (tmp_path / "out" / "report.md").read_text()
    assert without.count(LINE) == 1
    assert "![" not in without
    assert "SVG" not in without
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
