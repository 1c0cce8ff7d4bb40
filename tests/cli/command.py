"""Running the command line inside the test process, and what a refusal must look like."""

import contextlib
import io
import shlex
import warnings
from pathlib import Path
from typing import NamedTuple

from sween.cli import main


class Outcome(NamedTuple):
    """What one command left: its exit code and both streams."""

    code: int
    stdout: str
    stderr: str


def run_cli(*arguments: str | Path) -> Outcome:
    """`sween ARGUMENTS`, in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    show = warnings.showwarning
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = main([str(argument) for argument in arguments])
    finally:
        warnings.showwarning = show
    return Outcome(code, stdout.getvalue(), stderr.getvalue())


def run_line(line: str) -> Outcome:
    """`sween LINE`, split as a shell would."""
    return run_cli(*shlex.split(line))


def succeed(line: str) -> str:
    """Run a line that must end well; gives its standard output."""
    outcome = run_line(line)
    assert outcome.code == 0, outcome.stderr
    assert "error" not in outcome.stderr
    return outcome.stdout


Listing = dict[Path, tuple[int, int]]


def listing(*folders: Path) -> Listing:
    """Everything below some folders, hidden files too, with size and time of change."""
    found: Listing = {}
    for folder in folders:
        for path in folder.rglob("*"):
            status = path.lstat()
            is_folder = path.is_dir() and not path.is_symlink()
            found[path] = (0, 0) if is_folder else (status.st_size, status.st_mtime_ns)
    return found


def assert_refused(line: str, *parts: str, watched: tuple[Path, ...]) -> None:
    """Exit code 2, one line on stderr with each part and a fix, and not a file touched."""
    before = listing(*watched)
    code, stdout, stderr = run_line(line)
    assert code == 2, stderr
    assert stdout == ""
    assert stderr.startswith("sween: error: ")
    assert stderr.count("\n") == 1
    assert stderr.endswith("\n")
    assert "Traceback" not in stderr
    what, _, fix = stderr.rpartition(";")
    assert what, f"no fix: {stderr}"
    assert fix.strip(), f"no fix: {stderr}"
    for part in parts:
        assert part.lower() in stderr.lower(), f"no {part!r} in {stderr}"
    assert listing(*watched) == before


def assert_check_failed(outcome: Outcome, *parts: str) -> None:
    """Exit code 1 and one line on stderr with each part."""
    assert outcome.code == 1, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("sween: check failed: ")
    assert outcome.stderr.count("\n") == 1
    for part in parts:
        assert part in outcome.stderr, f"no {part!r} in {outcome.stderr}"
