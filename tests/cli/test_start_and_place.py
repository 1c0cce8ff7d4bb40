"""Before the work: interrupts during the import, places that cannot be written, leftovers."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.cli.command import assert_refused, succeed
from tests.cli.conftest import Made
from tests.cli.mounting import mounted

STOPPED = "sween: interrupted; run the same command again to resume train, certify or attack\n"

ENTRIES = {
    "module": ["-m", "sween", "certify", "--help"],
    "script": ["-c", "import sys; from sween.cli import main; sys.exit(main())", "certify"],
}
"""`python -m sween`, and what an installed `sween` does, with a verb that imports torch."""


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
    (folder / "empty" / "deep").mkdir(parents=True)
    with mounted(folder, ["--bind", str(folder)], ["-o", "remount,ro,bind"]):
        yield folder


@pytest.mark.parametrize("place", ["new", "new/deep", "empty/deep"])
def test_weigh_finds_out_before_the_work_that_it_may_not_write(
    place: str, read_only: Path, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("it solved the weights first")

    monkeypatch.setattr("sween.cli.weigh.weigh", work)
    line = made.fill(f"weigh {{runs}} --samples 2 --out {read_only}/{place}", tmp_path)
    assert_refused(line, str(read_only), "choose a folder you may write to", watched=(tmp_path,))


@pytest.mark.slow
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


def test_running_out_of_memory_at_work_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has")

    monkeypatch.setattr("sween.cli.train.train_many", fail)
    line = f"train --dataset digits --arch digits-mlp --sigma 0.5 --epochs 1 --out {tmp_path}/out"
    assert_refused(line, "memory ran out", "2 GiB", "another device", watched=(tmp_path,))
