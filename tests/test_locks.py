"""One writer per folder: many processes at once, vanishing folders, leftovers of killed ones."""

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from sween.errors import BadInput, FolderBusy
from sween.locks import FolderLock, remove_leftovers, temporary_file
from sween.run_folder import atomic_path, run_folder, write_text

ROUNDS = 20
PROCESSES = 8


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_second_writer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "run") as lock:
        (lock.folder / "rows").write_text("row\n")
        before = everything(tmp_path)
        said = r"run: expected .*another process or thread.*wait for it"
        with pytest.raises(FolderBusy, match=said):
            FolderLock(tmp_path / "a" / "run")
        with pytest.raises(FolderBusy), run_folder(lock.folder, {"a": 1}, rows="rows.jsonl"):
            pass
        assert everything(tmp_path) == before
    with FolderLock(tmp_path / "a" / "run"):
        pass
    assert everything(tmp_path) == before


def test_created_folders_that_stay_empty_are_removed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with FolderLock(tmp_path / "there" / "a" / "b"):
        assert everything(tmp_path) == ["there", "there/a", "there/a/b"]
    assert everything(tmp_path) == ["there"]
    with FolderLock(tmp_path / "there"):
        pass
    assert everything(tmp_path) == ["there"], "the user's empty folder is kept"
    with FolderLock(tmp_path / "there" / "a" / "b") as lock:
        (lock.folder.parent / "file").touch()
    assert everything(tmp_path) == ["there", "there/a", "there/a/file"]


def test_a_folder_that_vanishes_before_locking_is_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder of the lock failed and removed the folder, which was already open here."""
    lock, calls = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / "a" / "run").rmdir()
            (tmp_path / "a").rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with FolderLock(tmp_path / "a" / "run"):
        assert len(calls) == 2
        with pytest.raises(FolderBusy):
            FolderLock(tmp_path / "a" / "run")
    assert everything(tmp_path) == []


def test_the_next_writers_folder_is_kept(tmp_path: Path) -> None:
    first = FolderLock(tmp_path / "run")
    (tmp_path / "run").rmdir()  # by a user, say
    with FolderLock(tmp_path / "run"):
        first.release()
        assert everything(tmp_path) == ["run"]


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(BadInput, match=r"a file system with locks.*Function not implemented"):
        FolderLock(tmp_path)
    with pytest.raises(BadInput, match="a file system with locks"):
        FolderLock(tmp_path / "a" / "run")
    assert everything(tmp_path) == []
    write_text(tmp_path / "file", "written all the same")
    (tmp_path / ".sween-abcdefgh.tmp").touch()
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == [".sween-abcdefgh.tmp", "file"], "it may be in use"


@pytest.fixture(params=[errno.EBADF, errno.EOPNOTSUPP])
def files_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with byte-range locks, which need a file open for writing."""
    lock = fcntl.flock

    def files(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(request.param, os.strerror(request.param))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", files)


@pytest.mark.usefixtures("files_alone")
def test_a_file_is_locked_if_folders_cannot_be(tmp_path: Path) -> None:
    out = tmp_path / "a" / "run"
    with FolderLock(out):
        assert everything(tmp_path) == ["a", "a/run", "a/run/.sween-lock"]
        with pytest.raises(FolderBusy):
            FolderLock(out)
        assert everything(tmp_path) == ["a", "a/run", "a/run/.sween-lock"]
    assert everything(tmp_path) == []
    out.mkdir(parents=True)
    (out / ".sween-lock").touch()  # of a killed process
    with FolderLock(out):
        (out / "row").touch()
    assert everything(tmp_path) == ["a", "a/run", "a/run/row"]


@pytest.mark.parametrize("kind", [stat.S_ISDIR, stat.S_ISREG])
def test_no_locks_available_does_not_remove_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[int], bool]
) -> None:
    """ENOLCK may be returned to one process while another holds the lock."""
    (tmp_path / ".sween-lock").touch()

    def full(descriptor: int, _how: int) -> None:
        code = errno.ENOLCK if kind(os.fstat(descriptor).st_mode) else errno.EBADF
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", full)
    with pytest.raises(BadInput, match=r"a file system with locks.*No locks available"):
        FolderLock(tmp_path)
    assert everything(tmp_path) == [".sween-lock"]


@pytest.mark.usefixtures("files_alone")
def test_a_lock_file_that_vanishes_before_locking_is_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous holder removed it, or another process recreated it: this lock is void."""
    lock, calls = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            calls.append(descriptor)
            if len(calls) <= 2:
                (tmp_path / "run" / ".sween-lock").unlink()
            if len(calls) == 1:
                (tmp_path / "run").rmdir()
            if len(calls) == 2:
                (tmp_path / "run" / ".sween-lock").touch()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with FolderLock(tmp_path / "run"):
        assert len(calls) == 3
        with pytest.raises(FolderBusy):
            FolderLock(tmp_path / "run")
    assert not (tmp_path / "run" / ".sween-lock").exists()


@pytest.mark.usefixtures("files_alone")
def test_the_next_writers_lock_file_is_kept(tmp_path: Path) -> None:
    first = FolderLock(tmp_path / "run")
    (tmp_path / "run" / ".sween-lock").unlink()  # by a user, say
    with FolderLock(tmp_path / "run"):
        first.release()
        assert everything(tmp_path) == ["run", "run/.sween-lock"]


@pytest.mark.parametrize("place", ["link", "link/run"])
def test_a_broken_link_is_reported(tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to("unplugged")
    with pytest.raises(BadInput, match=r"link: expected a folder, got a link to unplugged"):
        FolderLock(tmp_path / place)
    assert everything(tmp_path) == ["link"]


_CONTEND = """
    import errno, fcntl, json, os, stat, sys, time
    from pathlib import Path
    from sween.errors import FolderBusy
    from sween.records import RowWriter
    from sween.run_folder import run_folder

    folder, rounds, processes, fail, files_alone = Path(sys.argv[1]), *map(int, sys.argv[2:])
    lock = fcntl.flock

    def files(descriptor, how):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, how)

    if files_alone:
        fcntl.flock = files

    def work(number):
        try:
            with run_folder(folder / "run", {"a": 1}, rows="rows.jsonl") as path:
                if number < fail:
                    raise ValueError("bad input, found before the first row")
                time.sleep(0.001 * number)
                with RowWriter(path) as writer:
                    time.sleep(0.002)
                    writer.append([{"process": number}])
        except FolderBusy:
            return 2
        except ValueError:
            return 3
        return 0

    for round in range(rounds):
        ready, go = os.pipe()
        children = []
        for number in range(processes):
            child = os.fork()
            if not child:
                code = 9
                try:
                    os.close(go)
                    os.read(ready, 1)  # until all are there
                    code = work(number)
                finally:
                    os._exit(code)
            children.append(child)
        os.close(ready)
        os.close(go)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        rows = folder / "run" / "rows.jsonl"
        files = sorted(path.name for path in folder.rglob("*"))
        print(json.dumps([codes, rows.read_text() if rows.exists() else "", files]))
        for path in (folder / "run").glob("*"):
            path.unlink()
        if (folder / "run").exists():
            (folder / "run").rmdir()
"""


@pytest.mark.parametrize(
    ("fail", "files_alone"),
    [
        *((fail, 0) for fail in (0, PROCESSES // 2, PROCESSES)),
        (PROCESSES // 2, 1),
        *(pytest.param(fail, 1, marks=pytest.mark.slow) for fail in (0, PROCESSES)),
    ],
)
def test_many_processes_at_one_instant(tmp_path: Path, fail: int, files_alone: int) -> None:
    """Every row of a process that succeeded is there, whatever the others did."""
    numbers = map(str, (ROUNDS, PROCESSES, fail, files_alone))
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CONTEND), str(tmp_path), *numbers],
        env={**os.environ, "SWEEN_COMMIT": "told"},  # asking git takes longer than all the rest
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    rounds = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(rounds) == ROUNDS
    for codes, rows, files in rounds:
        assert set(codes) <= {0, 2, 3}
        assert set(codes[:fail]) <= {2, 3}
        won = [number for number, code in enumerate(codes) if code == 0]
        assert won or fail, "one process must get it"
        assert sorted(json.loads(row)["process"] for row in rows.splitlines()) == won
        if won:
            assert files == ["config.toml", "environment.json", "rows.jsonl", "run"]
        else:
            assert files in ([], ["run"]), "no config that would refuse the corrected command"


def test_a_temporary_file_in_use_is_kept(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "file") as file:
        before = everything(tmp_path)
        with FolderLock(tmp_path):
            assert everything(tmp_path) == before
        file.write_text("whole")
    assert everything(tmp_path) == ["file"]


def test_only_sweens_leftovers_are_removed(tmp_path: Path) -> None:
    strangers = (".sween-abc.tmp", ".sween-ABCDEFGH.tmp", "sween-abcdefgh.tmp", ".file-abcdefgh.md")
    for name in (*strangers, ".sween-abcdefgh.tmp"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".sween-12345678.tmp").mkdir()  # temporaries are files
    (tmp_path / ".sween-________.tmp").symlink_to(tmp_path / strangers[0])
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == sorted(
        [*strangers, ".sween-12345678.tmp", ".sween-________.tmp"]
    )
    remove_leftovers(tmp_path / "absent")


_KILLED = """
    import os, signal, sys
    from pathlib import Path
    from sween.locks import FolderLock, temporary_file

    with FolderLock(Path(sys.argv[1])) as lock:
        with temporary_file(lock.folder) as file:
            file.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_writer_removes_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(out)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert len(list(out.iterdir())) == 1
    with FolderLock(out):
        assert list(out.iterdir()) == []


def test_a_temporary_file_removed_as_a_leftover_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock another process may find it unlocked."""
    lock = fcntl.flock
    removed: list[Path] = []

    def late(descriptor: int, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            os.unlink(removed[0])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with temporary_file(tmp_path) as temporary:
        assert temporary.exists()
        assert [temporary] != removed
    assert everything(tmp_path) == []


def test_a_link_is_written_through_and_no_device_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "whole")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "whole"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="pipe: expected a file"):
        write_text(tmp_path / "pipe", "whole")
    assert (tmp_path / "pipe").is_fifo()
