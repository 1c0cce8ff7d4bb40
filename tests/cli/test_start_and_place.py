"""Before the work: interrupts during the import, places that cannot be written, leftovers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.cli.command import assert_refused, run_line, succeed
from tests.cli.conftest import Made

STOPPED = "sween: interrupted; run the same command again to resume train, certify or attack\n"

ENTRIES = {
    "module": ["-m", "sween", "--version"],
    "script": ["-c", "import sys; from sween.cli import main; sys.exit(main())", "--version"],
}
"""`python -m sween`, and what an installed `sween` does."""


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_an_interrupt_during_the_import(entry: str, delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, *ENTRIES[entry]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", STOPPED)


def test_importing_the_package_is_quick_and_its_names_are_there() -> None:
    script = (
        "import sys, sween, sween.cli; assert 'torch' not in sys.modules; sween.load; sween.zoo"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_interrupt_in_a_program_of_ones_own_is_an_exception() -> None:
    script = (
        "import os, signal, sween\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print('mine')\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout == "mine\n"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that even root cannot write."""
    folder = tmp_path / "read-only"
    (folder / "empty").mkdir(parents=True)
    (folder / "empty" / "deep").mkdir()
    for options in (["--bind", str(folder)], ["-o", "remount,ro,bind"]):
        try:
            mounted = subprocess.run(
                ["mount", *options, str(folder)], capture_output=True, timeout=30, check=False
            )
        except OSError:
            pytest.skip("no mount here")
        if mounted.returncode != 0:
            pytest.skip("mounting is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=30, check=True)


@pytest.mark.parametrize("place", ["new", "new/deep", "empty/deep"])
def test_weigh_finds_out_before_the_work_that_it_may_not_write(
    place: str, read_only: Path, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("it solved the weights first")

    monkeypatch.setattr("sween.cli.weigh.weigh", work)
    line = made.fill(f"weigh {{runs}} --samples 2 --out {read_only}/{place}", tmp_path)
    assert_refused(line, str(read_only), "choose a folder you may write to", watched=(tmp_path,))


def test_weigh_that_fails_leaves_the_old_ensemble_and_nothing_else(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = made.fill("weigh {runs} --method uniform --samples 1 --quiet --out {out}", tmp_path)
    assert_refused(f"{line} --method conex", "'conex'", "convex", watched=(tmp_path,))
    succeed(line)
    assert_refused(f"{line} --method conex", "'conex'", "convex", watched=(tmp_path,))
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if Path(target).name == "config.toml":
            raise OSError(5, os.strerror(5), str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run_line(line).code == 2
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_weigh_through_a_link(made: Made, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    line = made.fill("weigh {runs} --method uniform --samples 1 --quiet --out {out}", tmp_path)
    for _ in range(2):
        succeed(line)
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "real" / "config.toml").is_file()


def test_what_a_killed_report_left_goes_with_the_next(made: Made, tmp_path: Path) -> None:
    """Killed between the writing of a file and its renaming, twice."""
    line = made.fill("report {certificates} --out {out}", tmp_path)
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom sween.cli import main\n"
        "left, replace = [int(sys.argv[1])], Path.replace\n"
        "def late(self, target):\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return replace(self, target)\n"
        "Path.replace = late\n"
        f"main({line.split()!r})\n"
    )
    for count in (1, 4):
        command = [sys.executable, "-c", script, str(count)]
        killed = subprocess.run(command, capture_output=True, check=False, timeout=120)
        assert killed.returncode == -signal.SIGKILL
        assert [path.name for path in (tmp_path / "out").glob(".*")], "nothing to remove"
    succeed(line)
    assert not list((tmp_path / "out").glob(".*"))


TRAIN = "train --dataset digits --arch digits-mlp --sigma 0.5 --epochs 1 --quiet --out {out}"


def test_train_says_what_was_already_there(made: Made, tmp_path: Path) -> None:
    line = made.fill(TRAIN, tmp_path)
    assert succeed(line).startswith("trained digits-mlp on digits at sigma 0.5 into ")
    again = succeed(line)
    assert again.startswith("already trained: digits-mlp on digits at sigma 0.5 in ")
    assert "\n" not in again.strip()


def test_running_out_of_memory_at_work_is_one_line(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has")

    monkeypatch.setattr("sween.cli.train.train_many", fail)
    assert_refused(
        made.fill(TRAIN, tmp_path), "memory ran out", "2 GiB", "another device", watched=(tmp_path,)
    )


def test_a_recipe_by_name(made: Made, tmp_path: Path) -> None:
    """As far as the data, which are not there."""
    line = made.fill("train --config fast/gaussian --sigma 0.5 --out {out}", tmp_path)
    assert_refused(line, "root of cifar10", "--data-root", watched=(tmp_path,))
    line = line.replace("fast/gaussian", "fast/gausian")
    assert_refused(line, "fast/gausian", "did you mean 'fast/gaussian'?", watched=(tmp_path,))
