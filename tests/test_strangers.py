"""Scripts of users with their own model and data, run as scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import succeed

SCRIPTS = Path(__file__).parent / "strangers"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("script", ["own_module.py", "own_loader.py", "own_timm.py", "moving.py"])
def test_a_strangers_script_ends_in_a_folder_that_verifies_and_reports(
    script: str, tmp_path: Path
) -> None:
    if "timm" in script:
        pytest.importorskip("timm")
    out = tmp_path / "run"
    done = run(script, str(out))
    assert done.returncode == 0, done.stderr
    assert "rows re-derived" in succeed(f"verify {out}")
    if script != "moving.py":  # which has no labels, so no accuracy
        succeed(f"report {out} --out {tmp_path / 'report'}")
        assert (tmp_path / "report" / "report.md").is_file()


def test_a_model_that_changed_does_not_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("own_module.py", str(out)).returncode == 0
    script = (SCRIPTS / "own_module.py").read_text().replace("manual_seed(0)", "manual_seed(1)")
    other = tmp_path / "other.py"
    other.write_text(script)
    done = run(str(other), str(out))
    assert done.returncode == 1
    assert "another config" in done.stderr
    assert "fingerprint" in done.stderr


def test_own_data_and_network_through_the_command_line(tmp_path: Path) -> None:
    names = "--dataset my_data:stripes"
    own = f"--arch my_net:tiny {names}"
    lines = (
        f"train {own} --sigma 0.25 --epochs 3 --out {tmp_path}/run --quiet",
        f"train {own} --sigma 0.25 --epochs 3 --seed 1 --out {tmp_path}/run2 --quiet",
        f"weigh {tmp_path}/run {tmp_path}/run2 {own} --out {tmp_path}/ensemble --quiet",
        f"certify {tmp_path}/ensemble {own} --indices 0:6 --n 500 --members "
        f"--out {tmp_path}/certificates --quiet",
        f"verify {tmp_path}/certificates --recount 2 --model {tmp_path}/ensemble {own} --quiet",
        f"report {tmp_path}/certificates --out {tmp_path}/report",
    )
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", "sween", *line.split()],
            cwd=SCRIPTS,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "report" / "report.md").is_file()
    refused = subprocess.run(
        [sys.executable, "-m", "sween", "certify", f"{tmp_path}/ensemble", "--all", "--out", "x"],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert refused.returncode == 2
    assert "--arch" in refused.stderr
    assert refused.stderr.count("\n") == 1
