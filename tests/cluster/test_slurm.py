"""An array of jobs, run as processes of this machine by submitit's local executor."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.utils import DelayedSubmission
from submitit.slurm.slurm import SlurmInfoWatcher

from sween.cluster import slurm
from sween.cluster.slurm import SlurmOptions, certify_in_jobs
from sween.errors import BadInput
from sween.run_folder import write_json
from sween.runs import verify_folder
from tests.cli.command import assert_refused, succeed
from tests.cluster import failing, noting

ZOO = "digits-sween3-gaussian-sigma0.50"
SLURM = "--engine slurm --executor local --jobs 2"


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "certificates.jsonl").read_text().splitlines()
    timed = ("seconds", "checksum")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def _jobs(out: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((out / "shards" / "jobs.json").read_text())["jobs"]
    return found


def _assert_same_run(out: Path, one: Path) -> None:
    assert _rows(out) == _rows(one)
    assert (out / "config.toml").read_bytes() == (one / "config.toml").read_bytes()
    assert verify_folder(out).rows == len(_rows(one))


def test_two_jobs_write_the_run_of_one_process(tmp_path: Path) -> None:
    line = f"certify {ZOO} --indices 0:5 --n 200 --quiet"
    succeed(f"{line} --out {tmp_path / 'one'}")
    out = tmp_path / "out"
    first = succeed(f"{line} {SLURM} --out {out}")
    assert "5 certificates written, 5 images" in first
    _assert_same_run(out, tmp_path / "one")
    jobs = _jobs(out)
    assert len({*jobs.values()}) == 2
    assert "0 certificates written, 5 images" in succeed(f"{line} {SLURM} --out {out}")
    assert _jobs(out) == jobs  # nothing was submitted again
    for other in ("--n 300", "--n 200 --noise exact"):
        changed = f"certify {ZOO} --indices 0:5 {other} {SLURM} --out {out}"
        assert_refused(changed, "--n 200", other, "another folder", watched=(out,))
    record = json.loads((out / "shards" / "jobs.json").read_text())
    (out / "shards" / "jobs.json").write_text(json.dumps(record | {"model": "f00"}))
    assert_refused(f"{line} {SLURM} --out {out}", "model", "f00", watched=(out,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--sampling decide --radius 0.25 --exit exact",
        "--sampling tolerance --tolerance 0.1",
        "--sampling budget --budget 12000 --n0 500",
        "--votes soft",
        "--members --exit paper --exit exact",
    ],
)
def test_every_sampling_is_that_of_one_process(options: str, tmp_path: Path) -> None:
    line = f"certify {ZOO} --every 40 --n 1000 {options} --quiet"
    succeed(f"{line} --out {tmp_path / 'one'}")
    succeed(f"{line} {SLURM} --out {tmp_path / 'out'}")
    _assert_same_run(tmp_path / "out", tmp_path / "one")


@pytest.mark.slow
def test_a_failed_job_is_named_in_one_line_with_its_log(tmp_path: Path) -> None:
    options = SlurmOptions(jobs=1, executor="local")
    with pytest.raises(BadInput) as caught:
        certify_in_jobs(failing.main, ["certify", "x"], tmp_path, options, images=3, quiet=True)
    (job,) = _jobs(tmp_path).values()
    log = tmp_path / "shards" / "logs" / job / f"{job}_0_log.err"
    assert str(caught.value) == (
        f"shard 1/1, job {job}: error: no such data set; its log is {log}; "
        "run the same command again to go on"
    )
    said = log.with_suffix(".out").read_text()
    assert f"certify x --shard 1/1 --out {tmp_path / 'shards' / '1-of-1'}" in said
    with pytest.raises(BadInput, match="no such data set"):  # a corrected command is tried
        certify_in_jobs(failing.main, ["certify", "y"], tmp_path, options, images=3, quiet=True)


@pytest.mark.parametrize("asked", ["--jobs 0", "--jobs 6", "--jobs 2 --time 0"])
def test_impossible_jobs_are_refused_by_their_option(asked: str, tmp_path: Path) -> None:
    line = f"certify {ZOO} --indices 0:5 --engine slurm --executor local {asked}"
    option = asked.split()[-2]
    assert_refused(f"{line} --out {tmp_path / 'out'}", f"{option}:", watched=(tmp_path,))


def test_another_number_of_jobs_and_another_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    record = {"shards": 3, "executor": "local", "jobs": {}}
    (tmp_path / "shards" / "jobs.json").write_text(json.dumps(record))
    options = SlurmOptions(jobs=2, executor="local")
    with pytest.raises(BadInput, match="jobs: expected 3"):
        certify_in_jobs(failing.main, [], tmp_path, options, images=3)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text("")
    with pytest.raises(BadInput, match="another run"):
        certify_in_jobs(failing.main, [], other, options, images=3)


Sacct = Callable[[str], int]


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sacct:
    """A cluster that accepts jobs 12, 13...; call it with a script that prints their states."""
    commands = {
        "sbatch": f'cp "$1" {tmp_path}/submitted.sh; echo >> {tmp_path}/submissions; '
        f"echo Submitted batch job $((11 + $(wc -l < {tmp_path}/submissions)))",
        "srun": "true",
        "sacct": f"echo 'JobID|State|NodeList'; cd {tmp_path}; . ./known",
    }
    for name, script in commands.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(submitit.SlurmJob, "watcher", SlurmInfoWatcher())  # with no other jobs
    monkeypatch.setitem(slurm.EXECUTORS, "slurm", 0.01)
    return (tmp_path / "known").write_text


def test_an_array_is_submitted_to_slurm_with_its_options(tmp_path: Path, sacct: Sacct) -> None:
    """Both jobs fail at once."""
    sacct("echo '12_0|FAILED|a'; echo '12_1|FAILED|a'")
    options = SlurmOptions(
        jobs=2, partition="gpu", minutes=30, gpus_per_job=4, options={"account": "me"}
    )
    with pytest.raises(BadInput, match=r"job 12_0: the job wrote no log \(2 of 2 jobs failed\)"):
        certify_in_jobs(failing.main, ["certify"], tmp_path / "out", options, images=8, quiet=True)
    submitted = (tmp_path / "submitted.sh").read_text()
    wanted = ("array=0-1%2", "partition=gpu", "time=30", "gpus-per-node=4", "account=me")
    for option in wanted:
        assert f"#SBATCH --{option}\n" in submitted
    assert _jobs(tmp_path / "out") == {"1": "12_0", "2": "12_1"}


def test_jobs_that_sbatch_refuses_are_one_line_and_leave_the_folder_free(
    tmp_path: Path, sacct: Sacct
) -> None:
    sacct("true")
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: invalid partition specified: foo' >&2\nexit 1\n"
    )
    out, options = tmp_path / "out", SlurmOptions(jobs=2, partition="foo")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"sbatch accepts the jobs, got .*invalid partition"):
            certify_in_jobs(failing.main, ["certify"], out, options, images=8, quiet=True)
        assert not [path for path in out.rglob("*") if path.is_file()]


def test_gpus_are_for_jobs_of_a_cluster(tmp_path: Path, sacct: Sacct) -> None:
    """And a job that asked for them does not certify on a CPU."""
    with pytest.raises(BadInput, match="gpus_per_job: expected none with executor local"):
        SlurmOptions(jobs=2, executor="local", gpus_per_job=1)
    sacct("echo '12_0|FAILED|a'; echo '12_1|FAILED|a'")
    with pytest.raises(BadInput, match="job 12_0"):
        certify_in_jobs(
            failing.main,
            ["certify"],
            tmp_path,
            SlurmOptions(jobs=2, gpus_per_job=1),
            images=8,
            quiet=True,
        )
    pickled = [*tmp_path.rglob("*_submitted.pkl")]
    assert len(pickled) == 2
    for path in pickled:
        assert DelayedSubmission.load(path).args[0][-2:] == ["--device", "cuda"]


def test_a_job_that_sacct_never_knew_ends_the_run(
    tmp_path: Path, sacct: Sacct, monkeypatch: pytest.MonkeyPatch
) -> None:
    sacct("echo '12_0|RUNNING|a'")
    monkeypatch.setattr(slurm, "UNKNOWN_SECONDS", 0.1)
    with pytest.raises(BadInput, match=r"job 12_1: expected a job that sacct knows, got no word"):
        _certify_in_slurm(tmp_path / "out")


def test_a_driver_killed_before_it_records_its_jobs_leaves_none_that_run_twice(
    tmp_path: Path, sacct: Sacct, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, ran = tmp_path / "out", tmp_path / "ran"
    monkeypatch.setenv("RAN", str(ran))
    until_the_second = "[ $(wc -l < submissions) = 1 ] && state=RUNNING || state=FAILED"
    sacct(f"{until_the_second}; echo 12_0'|'$state'|'a; echo '13|FAILED|a'")
    with monkeypatch.context() as killing:

        def killed(path: Path, content: dict[str, Any]) -> None:
            if content["jobs"]:
                raise KeyboardInterrupt
            write_json(path, content)

        killing.setattr(slurm, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            _certify_in_slurm(out)
    assert _jobs(out) == {}
    _run_job(out, "12_0", monkeypatch)  # started before the next driver, which follows it
    with pytest.raises(BadInput, match="2 of 2 jobs failed"):
        _certify_in_slurm(out)
    assert _jobs(out) == {"1": "12_0", "2": "13"}
    _run_job(out, "12_1", monkeypatch)  # too late
    _run_job(out, "13", monkeypatch)
    _run_job(out, "12_0", monkeypatch)  # requeued
    assert ran.read_text().splitlines() == ["1/2", "2/2", "1/2"]


def _certify_in_slurm(out: Path) -> None:
    options = SlurmOptions(jobs=2)
    certify_in_jobs(noting.main, ["certify"], out, options, images=8, quiet=True)


def _run_job(out: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cluster does with a submitted job."""
    array, _, task = job.partition("_")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", array)
    for name, value in (("SLURM_ARRAY_JOB_ID", array), ("SLURM_ARRAY_TASK_ID", task)):
        if task:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    paths = submitit.SlurmJob[None](out / "shards" / "logs" / "%j", job).paths
    DelayedSubmission.load(paths.submitted_pickle).result()


@pytest.fixture
def driver(tmp_path: Path) -> Callable[[], "subprocess.Popen[str]"]:
    """Starts the command of a run that takes a while, and gives its process."""

    def start() -> "subprocess.Popen[str]":
        line = f"certify {ZOO} --every 9 --n 30000 {SLURM} --quiet --out {tmp_path / 'out'}"
        return subprocess.Popen(
            [sys.executable, "-m", "sween", *line.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a process group, as a shell makes of a command
        )

    return start


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by one process."""
    out = tmp_path_factory.mktemp("one") / "run"
    succeed(f"certify {ZOO} --every 9 --n 30000 --quiet --out {out}")
    return out


def _wait_for_rows(out: Path) -> None:
    """Until both shards have rows."""
    files = [out / "shards" / f"{number}-of-2" / "certificates.jsonl" for number in (1, 2)]
    for _ in range(2_000):
        if all(file.exists() and file.stat().st_size for file in files):
            return
        time.sleep(0.1)
    raise AssertionError("no rows")


def _worker_of(job: str) -> int:
    """The process that certifies: the child of the job's own."""
    children = Path(f"/proc/{job}/task/{job}/children").read_text().split()
    return int(children[0])


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_driver_lose_nothing(
    driver: Callable[[], "subprocess.Popen[str]"], one: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = driver()
    _wait_for_rows(out)
    before = _jobs(out)
    os.kill(_worker_of(before["1"]), signal.SIGKILL)
    first.kill()
    first.communicate()
    second = driver()  # attaches to the other worker, and submits the killed one again
    _, errors = second.communicate(timeout=600)
    assert second.returncode == 0, errors
    after = _jobs(out)
    assert after["2"] == before["2"]
    assert after["1"] != before["1"]
    _assert_same_run(out, one)


@pytest.mark.slow
def test_a_preempted_job_is_requeued_and_resumes(
    driver: Callable[[], "subprocess.Popen[str]"], one: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    running = driver()
    _wait_for_rows(out)
    before = _jobs(out)
    worker = _worker_of(before["1"])
    os.kill(worker, signal.SIGUSR2)  # as SLURM does before it takes the node away
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 0, errors
    assert _jobs(out) == before
    log = out / "shards" / "logs" / before["1"] / f"{before['1']}_0_log.err"
    assert "Requeued" in log.read_text() + log.with_suffix(".out").read_text()
    _assert_same_run(out, one)


@pytest.mark.slow
def test_an_interrupt_detaches(
    driver: Callable[[], "subprocess.Popen[str]"], one: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = driver()
    _wait_for_rows(out)
    before = _jobs(out)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: to the jobs, too
    _, errors = first.communicate()
    assert first.returncode == 130
    assert "the same command attaches again" in errors
    logs = [*(out / "shards" / "logs").rglob("*_log.out")]
    assert len(logs) == 2
    assert all("completed successfully" in log.read_text() for log in logs)
    second = driver()
    second.communicate(timeout=600)
    assert second.returncode == 0
    assert _jobs(out) == before
    _assert_same_run(out, one)
