"""Replacing an ensemble folder: killed at any instant, failing at any rename, odd locations."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sween.ensemble import load_ensemble, load_members, save_ensemble
from sween.ensemble.folder import new_ensemble
from sween.errors import BadInput, FolderBusy
from tests.ensemble.test_weighted import make_run, make_solution

OLD, NEW = (0.25, 0.75), (0.5, 0.5)


def write(base: Path, out: Path, weights: tuple[float, ...]) -> None:
    """An ensemble of two; the old and the new one have different networks of the same names."""
    runs = [base / name for name in ("ab" if weights == OLD else "cd")]
    for number, run in enumerate(runs):
        if not run.exists():
            make_run(run, "abcd".index(run.name), named=number)
    save_ensemble(load_members(runs), runs, make_solution(weights), out)


def run(command: list[str]) -> str:
    environment = {**os.environ, "SWEEN_COMMIT": "unknown"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def add_others(out: Path) -> None:
    """Files that a user may have added to an ensemble, and its measurements."""
    (out / "NOTES.txt").write_text("mine")
    (out / "certs").mkdir()
    (out / "certs" / "config.toml").write_text("n = 100\n")
    (out / "measured.json").write_text("{}")


@pytest.mark.parametrize("error", [OSError(5, os.strerror(5)), KeyboardInterrupt()])
def test_a_rename_that_fails_leaves_the_old_ensemble_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    out = tmp_path / "out"
    write(tmp_path, out, OLD)
    add_others(out)
    before = contents(out)
    rename, calls, failing = Path.rename, 0, 0

    def fail(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    for _ in range(7):
        calls, failing = 0, failing + 1
        with pytest.raises(type(error)):
            write(tmp_path, out, NEW)
        assert contents(out) == before
    calls, failing = 0, 0
    write(tmp_path, out, NEW)
    assert calls == 7, "one of them did not fail"


_KILLED = """
    import json, os, pathlib, shutil, signal, sys
    from sween.ensemble import load_ensemble
    from sween.ensemble.folder import new_ensemble
    from sween.errors import CheckpointError
    from tests.ensemble.test_folder import NEW, OLD, add_others, contents, write

    base, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]) / "out"
    changes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.copyfile", "os.chmod"}

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
            return tuple(load_ensemble(out).weights.tolist())
        except CheckpointError as error:
            return str(error)

    write(base, out, NEW)  # and its runs
    for change in range(1, 1000):
        shutil.rmtree(out, ignore_errors=True)
        if sys.argv[2] == "over":
            write(base, out, OLD)
            add_others(out)
        child = os.fork()
        if not child:
            kill_before(change)
            write(base, out, NEW)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        first, left = found(), contents(base)
        with new_ensemble(base / "sibling"):  # nothing in it: it is gone again
            pass
        assert contents(base) == left
        try:
            with new_ensemble(out):
                raise ValueError("a bad option, say")
        except ValueError:
            second = found()
        names = sorted(path.name for path in out.glob("*"))
        write(base, out, NEW)
        assert found() == NEW
        print(json.dumps([first, second, names]))
        if not killed:
            break
"""


@pytest.mark.parametrize("place", ["over", "new"])
def test_an_ensemble_killed_at_any_instant_is_the_old_or_the_new_one(
    tmp_path: Path, place: str
) -> None:
    output = run([sys.executable, "-c", textwrap.dedent(_KILLED), str(tmp_path), place])
    kills = [json.loads(line) for line in output.splitlines()]
    seconds = [second for _, second, _ in kills]
    old, others = list(OLD), ["NOTES.txt", "certs"]
    for first, second, names in kills:
        if place == "over":
            assert second in (old, list(NEW))
            assert first == second or "has not finished replacing; wait" in first
            measured = ["measured.json"] if second == old else []
            assert names == [*others, "config.toml", "environment.json", *measured, "members"]
        elif second == list(NEW):
            assert names == ["config.toml", "environment.json", "members"]
        else:
            assert "got neither" in second or "no such file" in second
            assert names == []
    switch = seconds.index(list(NEW))
    assert set(map(str, seconds[switch:])) == {str(list(NEW))}, "back to the old one"
    assert any("not finished" in str(first) for first, _, _ in kills)
    assert switch > 5, "it was killed while it wrote the new one"
    assert kills[-1][0] == list(NEW)


def test_the_lock_is_held_until_the_ensemble_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write(tmp_path, out, OLD)
    rename, refused = Path.rename, 0

    def check(self: Path, target: Path) -> Path:
        nonlocal refused
        moved = rename(self, target)
        with pytest.raises(FolderBusy), new_ensemble(out):
            pass
        refused += 1
        return moved

    monkeypatch.setattr(Path, "rename", check)
    write(tmp_path, out, NEW)
    assert refused >= 6


def test_an_ensemble_is_replaced_on_a_mount_point(tmp_path: Path) -> None:
    """In a separate namespace, which removes the mount when it ends."""
    out = tmp_path / "out"
    out.mkdir()
    write(tmp_path, tmp_path / "somewhere", OLD)  # the runs
    script = (
        "import sys; from pathlib import Path; from tests.ensemble.test_folder import *\n"
        "for weights in (OLD, NEW): write(Path(sys.argv[1]), Path(sys.argv[1]) / 'out', weights)\n"
    )
    mount = f"mount -t tmpfs none {out}"
    if subprocess.run(["unshare", "-Urm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("mounting is not permitted here")
    command = f'{mount} && "$0" -c "$1" {tmp_path} && cat {out}/config.toml && ls -A {out}'
    output = run(["unshare", "-Urm", "sh", "-c", command, sys.executable, script])
    assert "weights = [0.5, 0.5]" in output
    assert output.endswith("\nconfig.toml\nenvironment.json\nmembers\n")


def test_an_ensemble_is_replaced_through_a_link_and_a_broken_link_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(BadInput, match="a link to real"):
        write(tmp_path, tmp_path / "link", OLD)
    (tmp_path / "real").mkdir()
    for weights in (OLD, NEW):
        write(tmp_path, tmp_path / "link", weights)
        assert load_ensemble(tmp_path / "real").weights.tolist() == list(weights)
    assert (tmp_path / "link").is_symlink()
