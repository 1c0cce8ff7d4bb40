"""A run that was killed goes on: its rows are those of a run that nothing stopped."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import run_line, succeed
from tests.cli.conftest import IMAGES, Made
from tests.cli.rows import rows_of

SLOW = "certify {ensemble} --indices 3:11 --n 15000 --exit paper --members --quiet --out {out}"
"""A few seconds: eight images with three rows each."""
QUICK = f"certify {{ensemble}} --indices 0:{IMAGES} --n 200 --members --quiet --out {{out}}"


def start(line: str) -> subprocess.Popen[str]:
    """The command as a process of its own, with as many threads as this one has."""
    return subprocess.Popen(
        [sys.executable, "-m", "sween", *line.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_rows(process: subprocess.Popen[str], path: Path, rows: int, delay: float) -> None:
    """Until so many rows are there, and a little longer."""
    while not path.exists() or path.read_bytes().count(b"\n") < rows:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    time.sleep(delay)
    assert process.poll() is None, "it ended before it could be stopped"


def test_killed_at_several_instants(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = SLOW.format(ensemble=made.ensemble, out=out)
    seen = 0
    for rows, delay in ((0, 0.0), (1, 0.0), (7, 0.02), (10, 0.05)):
        process = start(line)
        wait_for_rows(process, out / "certificates.jsonl", rows, delay)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
        process.communicate()
        written = len(rows_of(out))
        assert rows <= written < 24
        assert written >= seen
        seen = written
    assert run_line(f"verify {out}").code == 1
    succeed(line)
    succeed(SLOW.format(ensemble=made.ensemble, out=tmp_path / "whole"))
    assert rows_of(out) == rows_of(tmp_path / "whole")
    assert succeed(f"verify {out}").startswith("24 rows")


def test_an_interrupt_says_how_to_go_on(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(SLOW.format(ensemble=made.ensemble, out=out))
    wait_for_rows(process, out / "certificates.jsonl", 3, 0.0)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == ""
    assert (
        stderr
        == "sween: interrupted; run the same command again to resume train, certify or attack\n"
    )
    assert 3 <= len(rows_of(out)) < 24


def places_to_tear(content: bytes) -> list[int]:
    """Around the ends of some lines, inside the first and last one, and here and there."""
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    around = [
        end + offset
        for end in (ends[0], ends[1], ends[7], ends[-2], ends[-1])
        for offset in (-1, 0)
    ]
    return sorted({0, 1, *around, ends[0] + 1, len(content) - 200, *range(0, len(content), 1499)})


def test_torn_at_any_byte(made: Made, tmp_path: Path) -> None:
    content = (made.certificates / "certificates.jsonl").read_bytes()
    whole = rows_of(made.certificates)
    for place in places_to_tear(content):
        out = tmp_path / f"torn{place}"
        shutil.copytree(made.certificates, out)
        (out / "certificates.jsonl").write_bytes(content[:place])
        kept = content[:place].count(b"\n")
        said = succeed(QUICK.format(ensemble=made.ensemble, out=out))
        assert f"\n{len(whole) - kept} certificates written, {IMAGES} images" in said
        assert rows_of(out) == whole
        untouched = content[:place][: content[:place].rfind(b"\n") + 1]
        assert (out / "certificates.jsonl").read_bytes().startswith(untouched)
        assert succeed(f"verify {out}").startswith(f"{len(whole)} rows")


@pytest.mark.parametrize("options", ["--batch-size 1", "--batch-size 250", "--batch-size 5000"])
def test_going_on_with_another_batch_size_changes_nothing(
    options: str, made: Made, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(made.certificates, tmp_path / "out"))
    lines = (out / "certificates.jsonl").read_bytes().splitlines(keepends=True)
    (out / "certificates.jsonl").write_bytes(b"".join(lines[:5]))
    succeed(f"{QUICK.format(ensemble=made.ensemble, out=out)} {options}")
    assert rows_of(out) == rows_of(made.certificates)
