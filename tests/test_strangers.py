"""Scripts of users with their own model and data, run as scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import assert_refused, succeed

SCRIPTS = Path(__file__).parent / "strangers"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("script", ["own_module.py", "own_loader.py", "own_timm.py", "moving.py"])
def test_a_users_script_ends_in_a_folder_that_verifies_and_reports(
    script: str, tmp_path: Path
) -> None:
    if "timm" in script:
        pytest.importorskip("timm")
    out = tmp_path / "run"
    done = run("-W", "error", script, out)
    assert done.returncode == 0, done.stderr
    assert "rows re-derived" in succeed(f"verify {out}")
    if script != "moving.py":  # which has no labels, so no accuracy
        succeed(f"report {out} --out {tmp_path / 'report'}")
        assert (tmp_path / "report" / "report.md").is_file()


def test_a_users_data_and_network_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "--arch my_net:tiny --dataset my_data:stripes"
    line = f"train {own} --sigma 0.25 --epochs 3 --out {tmp_path}/run --quiet"
    done = run("-m", "sween", *line.split())  # finds the modules in the folder it runs in
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(SCRIPTS)
    for line in (
        f"train {own} --sigma 0.25 --epochs 3 --seed 1 --out {tmp_path}/run2 --quiet",
        f"weigh {tmp_path}/run {tmp_path}/run2 {own} --out {tmp_path}/ensemble --quiet",
        f"certify {tmp_path}/ensemble {own} --indices 0:6 --n 500 --members "
        f"--out {tmp_path}/certificates --quiet",
        f"verify {tmp_path}/certificates --recount 2 --model {tmp_path}/ensemble {own} --quiet",
        f"report {tmp_path}/certificates --out {tmp_path}/report",
    ):
        succeed(line)
    assert (tmp_path / "report" / "report.md").is_file()
    assert_refused(
        f"certify {tmp_path}/ensemble --all --out {tmp_path}/x", "--arch", watched=(tmp_path,)
    )
