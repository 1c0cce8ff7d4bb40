"""Two commands in one folder: one does its work, the other says one line and touches nothing."""

import subprocess
import time
from pathlib import Path

import pytest

from sween.errors import FolderBusy
from sween.locks import FolderLock
from tests.cli.command import assert_refused, listing, run_line, succeed
from tests.cli.conftest import Made
from tests.cli.test_resume import start

VERBS = {
    "train": "train --dataset digits --arch digits-conv --sigma 0.5 --epochs 9 --quiet --out {out}",
    "candidates": "train --dataset digits --arch digits-conv --sigma 0.5 --seed 1 --seed 2 "
    "--epochs 6 --quiet --out {out}",
    "weigh": "weigh {runs} --method convex --samples 200 --quiet --out {out}",
    "certify": "certify {ensemble} --indices 0:5 --sampling budget --budget 400000 --n 100000 "
    "--quiet --out {out}",
    "attack": "attack {ensemble} --eps 0.5 --attack pgd --samples 64 --steps 60 --n 2000 "
    "--indices 0:8 --batch-size 2 --quiet --out {out}",
    "report": "report {certificates} --out {out}",
}
"""Each takes seconds, so that the second comes while the first is at work."""

MADE = {
    "train": ["model.safetensors"],
    "candidates": ["digits-conv-seed1/model.safetensors", "digits-conv-seed2/model.safetensors"],
    "weigh": ["config.toml", "members/digits-mlp-seed1.safetensors"],
    "certify": ["certificates.jsonl"],
    "attack": ["attacks.jsonl"],
    "report": ["report.md", "report.html", "report-files.json"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_is_taken_is_refused(verb: str, made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "out" / ("digits-conv-seed2" if verb == "candidates" else "")
    with FolderLock(folder):
        (folder / "config.toml").write_text("")  # of the one at work: it looks like no run at all
        line = made.fill(VERBS[verb], tmp_path)
        if verb == "weigh":
            (folder / "config.toml").write_text('kind = "ensemble"\n')
        assert_refused(line, str(folder), "another process", "wait for it", watched=(tmp_path,))


def wait_until_taken(process: subprocess.Popen[str], out: Path) -> None:
    """Until a process holds the folder, without making the folder before it does."""
    while True:
        assert process.poll() is None, process.communicate()
        if out.is_dir():
            try:
                FolderLock(out).release()
            except FolderBusy:
                return
        time.sleep(0.005)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


def check_loser(code: int, stdout: str, stderr: str) -> None:
    assert code == 2, stderr
    assert stdout == ""
    assert stderr.startswith("sween: error: ")
    assert "another process or thread writing to that folder; wait for it" in stderr
    assert stderr.count("\n") == 1


def check_winner(verb: str, out: Path, made: Made, tmp_path: Path, said: str) -> None:
    for name in MADE[verb]:
        assert (out / name).is_file()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    if verb == "certify":
        assert said.splitlines()[-1].startswith("5 certificates written, 5 images in ")
        assert succeed(f"verify {out}").startswith("5 rows")


def test_a_second_certify_leaves_the_first_ones_rows(made: Made, tmp_path: Path) -> None:
    """As soon as the first has the folder: its rows come later, after the pilots of all images."""
    out = tmp_path / "out"
    line = made.fill(VERBS["certify"], tmp_path)
    first = start(line)
    wait_until_taken(first, out)
    check_loser(*run_line(line))
    code, stdout, stderr = ended(first)
    assert code == 0, stderr
    check_winner("certify", out, made, tmp_path, stdout)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("verb", VERBS)
def test_two_processes(verb: str, apart: float, made: Made, tmp_path: Path) -> None:
    line = made.fill(VERBS[verb], tmp_path)
    first = start(line)
    time.sleep(apart)
    second = start(line)
    outcomes = [ended(first), ended(second)]
    done = [outcome for outcome in outcomes if outcome[0] == 0]
    assert done, outcomes
    for outcome in outcomes:
        if outcome[0] != 0:
            check_loser(*outcome)
    # The second may have come when the first was done, and then had nothing left to do.
    check_winner(verb, tmp_path / "out", made, tmp_path, max(outcome[1] for outcome in done))


@pytest.mark.slow
@pytest.mark.parametrize("apart", [0.0] * 5 + [0.3, 1.0, 2.0, 2.5, 3.0])
def test_two_certify_again_and_again(apart: float, made: Made, tmp_path: Path) -> None:
    test_two_processes("certify", apart, made, tmp_path)


def test_the_loser_of_a_finished_folder_has_nothing_to_do(made: Made, tmp_path: Path) -> None:
    line = made.fill("certify {ensemble} --indices 0:2 --n 200 --quiet --out {out}", tmp_path)
    succeed(line)
    before = listing(tmp_path)
    assert succeed(line).splitlines()[-1].startswith("0 certificates written, 2 images")
    assert listing(tmp_path) == before
