"""`--shard`, `sween merge` and the array script, as a user runs them."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import assert_check_failed, assert_refused, run_line, succeed
from tests.cli.conftest import IMAGES, Made
from tests.cli.rows import rows_of
from tests.cli.test_resume import QUICK, SLOW, start, wait_for_rows
from tests.runs.sharding import assert_same_run

SCRIPT = Path(__file__).parents[2] / "docs/examples/certify_shards.sh"
BUDGET = "--indices 0:9 --n 1000 --n0 100 --sampling budget --budget 7000"


@pytest.fixture
def parts(made: Made, tmp_path: Path) -> list[Path]:
    """The shared run in two shards."""
    folders = [tmp_path / "part1", tmp_path / "part2"]
    for number, out in enumerate(folders, start=1):
        line = QUICK.format(ensemble=made.ensemble, out=out)
        said = succeed(f"{line} --shard {number}/2")
        assert said.startswith(f"shard {number}/2: 9 certificates written, 3 images in {out}")
        assert "accuracy" not in said
    return folders


def test_shards_are_certified_verified_and_merged(
    made: Made, parts: list[Path], tmp_path: Path
) -> None:
    assert succeed(f"merge {parts[1]} {parts[0]} {tmp_path}/none --missing") == "\n"
    said = succeed(f"verify {parts[0]}")
    assert said.startswith("9 rows re-derived: 3 images")
    assert "shard 1/2 is complete" in said
    for verb in (f"report {parts[0]}", f"attack {made.ensemble} --eps 1 --certificates {parts[0]}"):
        assert_refused(
            f"{verb} {'--indices 0:2' * verb.startswith('attack')} --out {tmp_path}/report",
            "expected a whole run, got shard 1/2",
            "sween merge",
            watched=(tmp_path,),
        )
    line = f"merge {parts[0]} {parts[1]} --out {tmp_path}/merged"
    assert succeed(line) == f"2 shards merged: 18 rows of {IMAGES} images in {tmp_path}/merged\n"
    assert "2 shards already merged" in succeed(line)
    assert_same_run(tmp_path / "merged", made.certificates)
    assert succeed(f"verify {tmp_path}/merged").startswith("18 rows")


def test_refusals_are_one_line(made: Made, parts: list[Path], tmp_path: Path) -> None:
    certify = QUICK.format(ensemble=made.ensemble, out=parts[0])
    attack = f"attack {made.ensemble} --eps 1 --indices 0:6 --attack pgd --batch-size 4"
    merge = f"merge {parts[0]} {parts[1]}"
    for line, *said in (
        (f"{certify} --shard 3/2", "shard: expected NUMBER/COUNT", "'3/2'"),
        (f"{certify} --shard x", "shard: expected NUMBER/COUNT", "'x'"),
        (f"{certify} --shard 2/2", "expected shard 2/2", "got shard 1/2"),
        (certify, "expected a whole run", "got shard 1/2"),
        (f"{certify}x --shard 1/7", "at most 6 shards", "6 images"),
        (f"{attack} --shard 1/3 --out {tmp_path}/new", "at most 2 shards", "2 batches"),
        (merge, "either --out or --missing", "neither"),
        (f"{merge} --missing --out {tmp_path}/out", "either --out or --missing", "both"),
        (f"merge {parts[0]} --out {tmp_path}/out", "missing 2/2"),
        (f"merge {made.certificates} --out {tmp_path}/out", "got a whole run"),
        (f"merge {tmp_path}/none --out {tmp_path}/out", "the folders of all shards"),
        (f"{merge} --out {parts[0]}", "got another run"),
    ):
        assert_refused(line, *said, watched=(tmp_path,))


def test_a_shard_torn_at_some_bytes_resumes(made: Made, parts: list[Path], tmp_path: Path) -> None:
    content = (parts[1] / "certificates.jsonl").read_bytes()
    for place in (0, 1, len(content) // 2, len(content) - 1):
        out = Path(shutil.copytree(parts[1], tmp_path / f"torn{place}"))
        (out / "certificates.jsonl").write_bytes(content[:place])
        failed = run_line(f"verify {out}")
        assert_check_failed(failed, "rows of shard 2/2 are missing")
        assert succeed(f"merge {parts[0]} {out} --missing") == "2\n"
        succeed(f"{QUICK.format(ensemble=made.ensemble, out=out)} --shard 2/2")
        assert rows_of(out) == rows_of(parts[1])


def test_pilot_votes_come_first_with_a_budget(made: Made, tmp_path: Path) -> None:
    part, line = tmp_path / "part", f"certify {made.ensemble} {BUDGET} --quiet --shard 1/1"
    said = succeed(f"{line} --out {part}")
    assert said.startswith(f"shard 1/1: pilot votes on 9 images in {part}; ")
    assert_check_failed(
        run_line(f"verify {part}"), "pilot votes on all its 9 images", "sween merge"
    )
    pilots = (part / "pilots.jsonl").read_bytes()
    (part / "pilots.jsonl").write_bytes(pilots[:-300])  # killed, that is
    assert_check_failed(run_line(f"verify {part}"), "2 of 9 rows of shard 1/1 are missing")
    succeed(f"{line} --out {part}")
    assert (part / "pilots.jsonl").read_bytes() == pilots
    assert "the plan of 1 shards is in their folders" in succeed(f"merge {part} --out {part}.out")
    assert succeed(f"{line} --out {part}").startswith("shard 1/1: 9 certificates written")
    succeed(f"merge {part} --out {part}.out")
    succeed(f"certify {made.ensemble} {BUDGET} --quiet --out {tmp_path}/whole")
    assert_same_run(tmp_path / "part.out", tmp_path / "whole")


def test_candidates_are_trained_in_shards(tmp_path: Path) -> None:
    options = "--dataset digits --sigma 0.5 --epochs 1 --arch digits-mlp --seed 1 --seed 2 --quiet"
    line = f"train {options} --out {tmp_path}/runs"
    assert_refused(f"{line} --shard 1/3", "at most 2 shards", "candidates", watched=(tmp_path,))
    said = succeed(f"{line} --shard 2/2")
    assert said.startswith("trained digits-mlp")
    assert said.count("\n") == 1
    (only,) = (tmp_path / "runs").iterdir()
    said = succeed(line)
    assert f"already trained: digits-mlp on digits at sigma 0.5 in {only}" in said
    assert len([*(tmp_path / "runs").iterdir()]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", BUDGET.replace("0:9", "0:200").replace("7000", "90000")])
def test_a_killed_shard_resumes(options: str, made: Made, tmp_path: Path) -> None:
    line = SLOW if not options else f"certify {{ensemble}} {options} --quiet --out {{out}}"
    parts = [tmp_path / "1", tmp_path / "2"]
    for turn, file in enumerate(("pilots.jsonl", "certificates.jsonl") if options else ("",)):
        for number, out in enumerate(parts, start=1):
            command = f"{line.format(ensemble=made.ensemble, out=out)} --shard {number}/2"
            process = start(command)
            wait_for_rows(process, out / (file or "certificates.jsonl"), 2, 0.0)
            process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=30) == -signal.SIGKILL
            process.communicate()
            assert succeed(f"merge {out} --missing").startswith("1" if number == 2 else "1,2")
            succeed(command)
        succeed(f"merge {parts[0]} {parts[1]} --out {tmp_path}/merged")
        assert (tmp_path / "merged").exists() == (turn == 1 or not options)
    succeed(line.format(ensemble=made.ensemble, out=tmp_path / "whole"))
    assert_same_run(tmp_path / "merged", tmp_path / "whole")


_SBATCH = """#!/bin/bash
for argument in "$@"; do
    case $argument in --array=*) array=${argument#--array=} ;; esac
done
echo "$array" >> "$LOG"
for task in ${array//,/ }; do
    if [[ $task == "${PREEMPTED:-}" ]]; then continue; fi
    SLURM_ARRAY_TASK_ID=$task bash "${@: -1}" >> "$LOG.tasks"
done
"""


@pytest.mark.slow
def test_the_array_script_submits_only_what_is_missing(made: Made, tmp_path: Path) -> None:
    programs = {
        "sbatch": _SBATCH,
        "squeue": '#!/bin/bash\necho "${QUEUED:-}" | grep . || true\n',
        "sween": f'#!/bin/bash\nexec {sys.executable} -m sween "$@"\n',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "LOG": f"{tmp_path}/arrays",
        "RUN": f"{tmp_path}/run",
        "SHARDS": "3",
        "CERTIFY": f"{made.ensemble} {BUDGET}",
        "OMP_NUM_THREADS": "1",
    }

    def submit(**settings: str) -> str:
        return subprocess.run(
            ["bash", SCRIPT], env=environment | settings, check=True, capture_output=True, text=True
        ).stdout

    assert "still queued" in submit(QUEUED="17 certify")
    submit(PREEMPTED="2")  # pilot votes of shards 1 and 3
    submit()  # those of shard 2
    assert "the plan of 3 shards" in submit(PREEMPTED="3")  # votes of shards 1 and 2
    submit()  # those of shard 3
    assert "3 shards merged: 9 rows of 9 images" in submit()
    assert "3 shards already merged" in submit()
    arrays = (tmp_path / "arrays").read_text().splitlines()
    assert arrays == ["1,2,3", "2", "1,2,3", "3"]
    succeed(f"certify {made.ensemble} {BUDGET} --quiet --out {tmp_path}/whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
