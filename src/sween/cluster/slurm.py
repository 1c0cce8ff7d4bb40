"""A certification as an array of SLURM jobs, one for each shard, by submitit.

A job runs the user's own command with `--shard`, so that it resumes by itself: requeueing it, on
preemption or at its time limit, is running it again. What is submitted is recorded next to the
shards, so that the driver can leave at any time; the next one follows the jobs that are still there
and submits what is missing.
"""

import dataclasses
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sween.arguments import whole_number
from sween.errors import BadInput, CheckpointError, MissingExtra, UnknownName, first_line
from sween.locks import FolderLock
from sween.paths import AnyPath, as_folder
from sween.progress import Advance, track
from sween.records import CERTIFICATES
from sween.run_folder import write_json
from sween.runs import CertificationConfig, MergedRun, Shard, merge_runs, shards_left
from sween.runs.pilots import PilotRun, is_planned

try:
    import submitit
except ImportError:
    raise MissingExtra("submitit", "slurm", "`engine=slurm`") from None

SHARDS, JOBS = "shards", "jobs.json"
"""The folder of the shards inside that of the run, and the record of their jobs in it."""

EXECUTORS = {"slurm": 10.0, "local": 0.5}
"""Who runs jobs, with the seconds between two looks at them; `local` starts processes here."""

SLURM_KEYS = {
    **dict.fromkeys(("account", "comment", "constraint", "exclude", "gres", "mail_type"), str),
    **dict.fromkeys(("mail_user", "mem", "mem_per_gpu", "nodelist", "qos", "setup"), str),
    **dict.fromkeys(("cpus_per_task", "cpus_per_gpu", "signal_delay_s", "array_parallelism"), int),
}
"""Further options of sbatch, with their types; `setup` is a shell command to run first."""

MINUTES = 240
"""The default time limit of a job."""

UNKNOWN_SECONDS = 600.0
"""How long sacct may know nothing of a job, as is usual just after sbatch, before the run ends."""

_REQUEUES = 1_000
"""Time limits that a job may reach; each time it has made progress."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """How jobs are submitted; checked when made.

    Attributes:
        jobs: number of shards.
        partition: of the cluster; its default if None.
        minutes: time limit of a job, after which it is requeued.
        gpus_per_job: GPUs that each job asks for; all of them share its images.
        options: further options of sbatch; see `SLURM_KEYS`.
        executor: `slurm`, or `local` for processes on this machine.
    """

    jobs: int
    partition: str | None = None
    minutes: int = MINUTES
    gpus_per_job: int | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    executor: str = "slurm"

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("minutes", 1), ("gpus_per_job", 0)):
            value = getattr(self, name)
            if value is not None and whole_number(name, value) < least:
                raise BadInput(
                    f"`{name}`", expected=f"at least {least}", got=value, fix="ask for more"
                )
        if self.executor not in EXECUTORS:
            raise UnknownName("executor", self.executor, EXECUTORS)
        if self.executor == "slurm" and shutil.which("sbatch") is None:
            raise BadInput(
                "engine slurm",
                expected="sbatch on this machine",
                got="none",
                fix="run the command on a login node of the cluster",
            )
        if self.executor == "local" and self.gpus_per_job:
            raise BadInput(
                "gpus_per_job",
                expected="none with executor local, whose jobs all see the GPUs of this machine",
                got=self.gpus_per_job,
                fix="leave it out",
            )
        self.parameters()

    def parameters(self) -> dict[str, Any]:
        """Those of submitit's executor."""
        values: dict[str, Any] = {}
        for key, text in self.options.items():
            if key not in SLURM_KEYS:
                raise UnknownName("option of `slurm`", key, SLURM_KEYS)
            try:
                values[key] = SLURM_KEYS[key](text)
            except ValueError:
                raise BadInput(
                    key, expected="a whole number", got=text, fix=f"pass {key}=4"
                ) from None
        if self.executor == "local":
            return {"timeout_min": self.minutes}
        if "setup" in values:
            values["setup"] = [values["setup"]]
        named = {"partition": self.partition, "gpus_per_node": self.gpus_per_job}
        values |= {name: value for name, value in named.items() if value is not None}
        return {"job_name": "sween", "time": self.minutes, "array_parallelism": self.jobs} | values


class ShardCommand(submitit.helpers.Checkpointable):
    """What a job runs; submitit requeues it as it is.

    Args:
        main: runs a command line and returns its exit code.
    """

    def __init__(self, main: Callable[[Sequence[str]], int]) -> None:
        self._main = main

    def __call__(self, arguments: Sequence[str], claim: Path) -> None:
        job = submitit.JobEnvironment().job_id
        if _first_claimant(claim, job) != job:
            sys.stdout.write("another job was submitted in place of this one\n")
            return
        code = self._main(arguments)
        if code:
            raise RuntimeError(f"sween exited with {code}")


_NO_JOB = "none"


def _first_claimant(claim: Path, claimant: str) -> str:
    """Who may certify a shard: the first to ask. A symbolic link is made once, and whole.

    A driver that is killed between sbatch and its record leaves jobs that no record names. The next
    driver claims their shards, so that these jobs do nothing should they ever start; where a job
    was first, the link says which.
    """
    with suppress(FileExistsError):
        claim.symlink_to(claimant)
    return os.readlink(claim)


@contextmanager
def _outliving_the_terminal() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C and the end of the terminal.

    A terminal sends both to all processes of a command, but they are meant for the driver alone. A
    process inherits the signals that are blocked when it is started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def certify_in_jobs(
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    out: AnyPath,
    options: SlurmOptions,
    *,
    images: int,
    fingerprint: str | None = None,
    planned: bool = False,
    quiet: bool = False,
) -> MergedRun:
    """Certify in an array of jobs, follow them and merge their shards into `out`.

    If it is interrupted, the jobs go on, and the same call attaches to them again. Shards whose
    jobs ended early are submitted again as long as they make progress.

    Args:
        main: runs a command line of sween in a job; a function that can be imported there.
        arguments: `certify` with all its options, in which `--out` and `--shard` are added.
        out: folder of the whole run.
        options: of the jobs.
        images: in all, for progress.
        fingerprint: of the model.
        planned: whether the sampling plans for all images together (see `Shard`).
        quiet: no progress display.

    Raises:
        BadInput: a job failed; its error and its log are named.
    """
    array = _Array(main, arguments, as_folder("out", out), options, fingerprint)
    while True:
        with FolderLock(array.folder):  # no two drivers submit the same shard
            array.read()
            array.find_unrecorded_jobs()
            left = array.left()
            if not left and not array.running():
                merged = merge_runs(array.folders.values(), out)
                if merged.run is not None:
                    return merged
                continue
            array.submit(left)
        pilots = planned and not all(map(is_planned, array.folders.values()))
        what, file = ("pilot votes", PilotRun.FILE) if pilots else ("certify", CERTIFICATES)
        before = sum(array.images(file).values())
        with track(f"{what} in {options.jobs} jobs", images - before, quiet=quiet) as advance:
            array.follow(file, advance)


class _Array:
    """The shards of a run and the jobs that certify them."""

    def __init__(
        self,
        main: Callable[[Sequence[str]], int],
        arguments: Sequence[str],
        out: Path,
        options: SlurmOptions,
        fingerprint: str | None,
    ) -> None:
        self.main, self.arguments, self.options = main, arguments, options
        self.folder = out / SHARDS
        self.shards = {number: Shard(number, options.jobs) for number in range(1, options.jobs + 1)}
        self.folders = {
            number: self.folder / f"{number}-of-{options.jobs}" for number in self.shards
        }
        self._record, self._logs = self.folder / JOBS, self.folder / "logs"
        if (out / "config.toml").exists() and not self._record.exists():
            raise CheckpointError(
                str(out),
                expected="a new folder, or one of an array of jobs",
                got="another run",
                fix="choose another folder",
            )
        self._own = dict[str, submitit.Job[None]]()
        self._unknown_since = dict[str, float]()
        self._asked = {"command": shlex.join(arguments), "model": fingerprint}
        self.read()
        self._counted = {number: _Rows(folder) for number, folder in self.folders.items()}

    def read(self) -> None:
        """Read which jobs were submitted, by this driver or another."""
        self.jobs: dict[int, submitit.Job[None]] = {}
        self._content: dict[str, Any] = {}
        if not self._record.exists():
            return
        try:
            content = json.loads(self._record.read_text(encoding="utf-8"))
            count, executor = int(content["shards"]), str(content["executor"])
            ids = {int(number): str(job) for number, job in content["jobs"].items()}
            content["submitting"] = dict(content.get("submitting", {}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                str(self._record),
                expected="the jobs of an array",
                got=error,
                fix="delete that file if none of them is running",
            ) from None
        if (count, executor) != (len(self.shards), self.options.executor):
            raise BadInput(
                "jobs",
                expected=f"{count} by executor {executor}, as {self.folder} was started with",
                got=f"{len(self.shards)} by executor {self.options.executor}",
                fix="use those, or another folder",
            )
        self._content = content
        self.jobs = {number: self._job(job) for number, job in ids.items()}
        for name, own in self._asked.items():
            if content.get(name) != own and (self._begun() or self.running()):
                # Jobs refuse the shards of another run, but complete shards are given to no job.
                raise BadInput(
                    name,
                    expected=f"`{content.get(name)}`, as {self.folder} was started with",
                    got=f"`{own}`",
                    fix="use that, or another folder",
                )

    def _job(self, job: str) -> "submitit.Job[None]":
        kind = submitit.SlurmJob if self.options.executor == "slurm" else submitit.LocalJob
        return self._own.get(job) or kind(self._logs / "%j", job)

    def find_unrecorded_jobs(self) -> None:
        """Take over or revoke the jobs of a driver that was killed before it had recorded them."""
        submitting = self._content.pop("submitting", {})
        for number, claim in submitting.items():
            job = _first_claimant(self._logs / claim, _NO_JOB)
            self._content["jobs"].pop(number, None)
            self._content["jobs"] |= {number: job} if job != _NO_JOB else {}
        if submitting:
            write_json(self._record, self._content)
            self.read()

    def _begun(self) -> dict[int, Path]:
        """The folders of shards that have started."""
        return {n: at for n, at in self.folders.items() if (at / "config.toml").exists()}

    def running(self) -> list[int]:
        """Shards whose jobs wait or run."""
        if self.options.executor == "slurm" and self.jobs:
            submitit.SlurmJob.watcher.update_if_long_enough("force")  # once for all
        return [number for number, job in self.jobs.items() if not self._is_done(job)]

    def _is_done(self, job: submitit.Job[None]) -> bool:
        if isinstance(job, submitit.LocalJob) and job.job_id not in self._own:
            # Of an earlier driver: its number is that of its process.
            try:
                return b"submitit" not in Path(f"/proc/{job.job_id}/cmdline").read_bytes()
            except OSError:
                return True
        return job.done()

    def left(self) -> list[int]:
        """Shards without a job that are missing or unfinished."""
        idle = self.folders.keys() - set(self.running())
        begun = {n: folder for n, folder in self._begun().items() if n in idle}
        unfinished = {n for n in shards_left(begun.values()) if n in begun} if begun else set()
        return sorted(unfinished | (idle - begun.keys()))

    def images(self, file: str) -> dict[int, int]:
        """Images of each shard that have all their rows in a file."""
        return {number: rows.images(file) for number, rows in self._counted.items()}

    def submit(self, numbers: Sequence[int]) -> None:
        """Submit an array of jobs and record them."""
        if not numbers:
            return
        options = self.options
        kind = submitit.SlurmExecutor if options.executor == "slurm" else submitit.LocalExecutor
        executor = kind(self._logs / "%j", max_num_timeout=_REQUEUES)
        executor.update_parameters(**options.parameters())
        own = [
            [*self.arguments, "--shard", str(self.shards[n]), "--out", str(self.folders[n])]
            for n in numbers
        ]
        on_gpus = ["--device", "cuda"]
        if options.gpus_per_job and on_gpus[0] not in self.arguments:
            # A job that was given none is to fail, and not to certify on a CPU.
            own = [[*words, *on_gpus] for words in own]
        self._logs.mkdir(parents=True, exist_ok=True)
        claims = {n: f"claim-{secrets.token_hex(8)}" for n in numbers}
        self._write(submitting=claims)
        paths = [self._logs / claim for claim in claims.values()]
        try:
            with _outliving_the_terminal() if options.executor == "local" else nullcontext():
                jobs = executor.map_array(ShardCommand(self.main), own, paths)
        except submitit.core.utils.FailedJobError as error:
            self._forget_submission()
            raise BadInput(
                "engine slurm",
                expected="that sbatch accepts the jobs",
                got=first_line(error),
                fix="check partition, time limit and further options of sbatch",
            ) from None
        self.jobs |= dict(zip(numbers, jobs, strict=True))
        self._own |= {job.job_id: job for job in jobs}
        self._write()

    def _forget_submission(self) -> None:
        """Leave the folder as it was before jobs were refused."""
        unnamed = [own for own in self._logs.glob("*.pkl") if "_" not in own.stem]  # by a job
        for file in (*unnamed, *self._logs.glob(".submission_file_*.sh")):
            file.unlink()
        if self.jobs:
            self._write()
        else:
            self._record.unlink()

    def _write(self, **more: Mapping[int, str]) -> None:
        content = {
            "shards": len(self.shards),
            "executor": self.options.executor,
            **self._asked,
            "jobs": {str(number): job.job_id for number, job in sorted(self.jobs.items())},
        }
        write_json(self._record, content | more)

    def follow(self, file: str, advance: Advance) -> None:
        """Show the progress of all jobs until the last of them has ended.

        Raises:
            BadInput: one of them ended without a new row and left its shard unfinished.
        """
        started = counts = self.images(file)
        while True:
            running, before = self.running(), sum(counts.values())
            counts = self.images(file)
            note = f"images; jobs: {self._states(running) or 'ended'}"
            advance(sum(counts.values()) - before, note)
            if not running:
                break
            self._refuse_unknown(running)
            time.sleep(EXECUTORS[self.options.executor])
        stuck = [number for number in self.left() if counts[number] == started[number]]
        if stuck:
            self._fail(stuck)

    def _refuse_unknown(self, numbers: Sequence[int]) -> None:
        """Raise if sacct knows nothing of a job for long; submitit would wait for it forever."""
        if self.options.executor == "local":
            return
        now, before = time.monotonic(), self._unknown_since
        jobs = [self.jobs[number] for number in numbers]
        unknown = [job.job_id for job in jobs if job.state == "UNKNOWN"]
        self._unknown_since = {job: before.get(job, now) for job in unknown}
        for job, since in self._unknown_since.items():
            if now > since + UNKNOWN_SECONDS:
                raise BadInput(
                    f"job {job}",
                    expected="a job that sacct knows",
                    got=f"no word of it in {UNKNOWN_SECONDS / 60:.0f} minutes",
                    fix=f"once squeue lists none of the jobs in {self._record}, delete that file "
                    "and run the same command again",
                )

    def _states(self, numbers: Sequence[int]) -> str:
        """How many jobs of some shards are in each state, such as 3 pending, 13 running."""
        local = self.options.executor == "local"
        states = ["running" if local else self.jobs[n].state.lower() for n in numbers]
        return ", ".join(f"{states.count(state)} {state}" for state in sorted({*states}))

    def _fail(self, numbers: Sequence[int]) -> None:
        number = numbers[0]
        job = self.jobs[number]
        several = f" ({len(numbers)} of {len(self.shards)} jobs failed)" if numbers[1:] else ""
        raise BadInput(
            f"shard {self.shards[number]}, job {job.job_id}: {_error_line(job.paths.stderr)}"
            f"{several}; its log is {job.paths.stderr}",
            fix="run the same command again to go on",
        )


class _Rows:
    """Counts the rows of a shard while it is being written; reads each of them once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._voters = folder, 0
        self._counted = dict[str, tuple[int, int]]()

    def images(self, file: str) -> int:
        """Images with all their rows in a file."""
        path = self._folder / file
        if not path.exists():
            return 0
        size, rows = self._counted.get(file, (0, 0))
        if path.stat().st_size < size:  # a resumed job removed a truncated row
            size = rows = 0
        with path.open("rb") as stream:
            stream.seek(size)
            new = stream.read()
        self._counted[file] = size, rows = size + len(new), rows + new.count(b"\n")
        if file == PilotRun.FILE:
            return rows
        self._voters = self._voters or len(CertificationConfig.read(self._folder).voters)
        return rows // self._voters


def _error_line(log: Path) -> str:
    """The line in which sween said what is wrong; otherwise the last one."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "the job wrote no log"
    said = [line for line in lines if line.startswith(("sween: error: ", "sween: check failed: "))]
    return (said[-1:] or lines[-1:] or ["the job wrote nothing"])[0].removeprefix("sween: ")
