"""A merge that was killed at any instant left no run or the whole one, and can be repeated."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.runs.sharding import BUDGET, FIXED

pytestmark = pytest.mark.slow

_KILLED = """
    import json, os, pathlib, shutil, signal, sys
    from sween.errors import BadInput
    from sween.runs import CertificationRun, merge_runs
    from tests.ensemble.test_folder import contents

    base = pathlib.Path(sys.argv[1])
    work, out = base.with_name("work"), base.with_name("work") / "out"
    folders = [work / "1", work / "2"]
    changes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "tempfile.mkstemp"}

    def kill_before(change):
        left = [change]
        def hook(event, _):
            if event in changes:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)

    def found():
        try:
            return len(CertificationRun.verify(out).rows)
        except BadInput:
            return None

    results = set()
    for change in range(1, 1000):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        child = os.fork()
        if not child:
            kill_before(change)
            merge_runs(folders, out)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        left = found()
        merge_runs(folders, out)
        results.add(str(sorted(contents(work).items())))
        print(json.dumps([killed, left, found()]))
        if not killed:
            break
    assert len(results) == 1, "a repeated merge gives another result"
"""


def kills(base: Path) -> list[tuple[bool, int | None, int | None]]:
    """After each kill: the rows of the run that was left, and of the one after another merge."""
    output = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_KILLED), str(base)],
        cwd=Path(__file__).parents[2],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return [json.loads(line) for line in output.splitlines()]


def test_a_merge_killed_at_any_instant_is_repeated(tmp_path: Path) -> None:
    FIXED.finished_shards(tmp_path / "parts", 2)
    found = kills(tmp_path / "parts")
    assert [killed for killed, _, _ in found] == [True] * (len(found) - 1) + [False]
    assert len(found) > 8
    assert {after for _, _, after in found} == {55}
    assert {left for _, left, _ in found} == {None, 55}


def test_plans_written_by_a_killed_merge_are_completed(tmp_path: Path) -> None:
    BUDGET.shards(tmp_path / "parts", 2)
    found = kills(tmp_path / "parts")
    assert len(found) > 5
    assert {(left, after) for _, left, after in found} == {(None, None)}
