"""Completion in a shell: verbs without torch, options and their values from the same lists."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sween.cli.app import run_verb
from sween.data import DATASETS
from sween.training.recipes import list_recipes
from sween.zoo import list_zoo

SOURCE = Path(__file__).resolve().parents[2] / "src"


def complete(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What bash is offered at the end of a line."""
    words = line.split(" ")
    monkeypatch.setenv("_SWEEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as ended:
        run_verb([])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sween ce", {"certify"}),
        ("sween zoo re", {"remove"}),
        ("sween certify digits --sam", {"--sampling"}),
        ("sween certify digits --sampling de", {"decide"}),
        ("sween certify ", {entry.name for entry in list_zoo()}),
        ("sween certify ./", set()),
        ("sween predict cifar10-sween6", {"cifar10-sween6-gaussian-sigma0.50"}),
        ("sween train --dataset ", set(DATASETS)),
        ("sween train --config ", set(list_recipes())),
        ("sween train --arch digits-m", {"digits-mlp"}),
        ("sween weigh run --method c", {"convex"}),
        ("sween bench --device c", {"cpu", "cuda"}),
        ("sween bench digits-m", {"digits-mlp"}),
        ("sween plan certify digits-s", {"digits-sween3-gaussian-sigma0.50"}),
        ("sween zoo remove ", set()),
    ],
)
def test_offers(
    line: str,
    offered: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(complete(line, monkeypatch, capsys).split()) == offered


@pytest.fixture
def sween_command(tmp_path: Path) -> Path:
    """`sween` on the path, as an installation puts it there."""
    script = tmp_path / "bin" / "sween"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom sween.cli import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return script


def test_in_a_shell_of_ones_own(sween_command: Path, tmp_path: Path) -> None:
    """What `--install-completion` leaves is what bash takes; a verb is completed without torch."""
    bash = shutil.which("bash")
    assert bash
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{sween_command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",  # the shell is named instead
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    shown = run("sween", "--show-completion", "bash")
    assert "bash completion installed" in run("sween", "--install-completion", "bash")
    assert (home / ".bash_completions" / "sween.sh").read_text().strip() == shown.strip()
    script = (
        f"source {home}/.bashrc; COMP_WORDS=(sween rep); COMP_CWORD=1; "
        "_sween_completion sween; echo ${COMPREPLY[*]}"
    )
    assert set(run(bash, "--norc", "-c", script).split()) == {"report", "reproduce"}
