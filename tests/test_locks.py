"""One writer a folder: many processes at once, folders that vanish, leftovers of killed ones."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sween.errors import BadInput, FolderBusy
from sween.locks import FolderLock, remove_leftovers, temporary_file, temporary_folder
from sween.runs import atomic_path, run_folder, write_text

ROUNDS = 20
PROCESSES = 8


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_second_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "run") as lock:
        (lock.folder / "rows").write_text("row\n")
        before = everything(tmp_path)
        with pytest.raises(FolderBusy, match=r"run: expected to be the only one .*wait for it"):
            FolderLock(tmp_path / "a" / "run")
        with pytest.raises(FolderBusy), run_folder(lock.folder, {"a": 1}, rows="rows.jsonl"):
            pass
        assert everything(tmp_path) == before
    with FolderLock(tmp_path / "a" / "run"):
        pass
    assert everything(tmp_path) == before


def test_what_was_made_and_stays_empty_goes(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with FolderLock(tmp_path / "there" / "a" / "b"):
        assert everything(tmp_path) == ["there", "there/a", "there/a/b"]
    assert everything(tmp_path) == ["there"]
    with FolderLock(tmp_path / "there"):
        pass
    assert everything(tmp_path) == ["there"], "an empty folder of the user's is not ours"
    with FolderLock(tmp_path / "there" / "a" / "b") as lock:
        (lock.folder.parent / "file").touch()
    assert everything(tmp_path) == ["there", "there/a", "there/a/file"]


def test_a_folder_that_vanishes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held the lock failed, and removed the folder that was already open here."""
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


def test_the_folder_of_the_next_one_is_left(tmp_path: Path) -> None:
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
    write_text(tmp_path / "file", "written all the same")
    (tmp_path / ".sween-abcdefgh.tmp").touch()
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == [".sween-abcdefgh.tmp", "file"], "it may be somebody's"


_CONTEND = """
    import json, os, sys, time
    from pathlib import Path
    from sween.errors import FolderBusy
    from sween.records import RowWriter
    from sween.runs import run_folder

    folder, rounds, processes, fail = Path(sys.argv[1]), *map(int, sys.argv[2:])

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


@pytest.mark.parametrize("fail", [0, PROCESSES // 2, PROCESSES])
def test_many_processes_at_one_instant(tmp_path: Path, fail: int) -> None:
    """Every row of a process that ended well is there, whatever the others did."""
    numbers = map(str, (ROUNDS, PROCESSES, fail))
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
        assert won or fail, "somebody must get it"
        assert sorted(json.loads(row)["process"] for row in rows.splitlines()) == won
        if won:
            assert files == ["config.toml", "environment.json", "rows.jsonl", "run"]
        else:
            assert files in ([], ["run"]), "no config that would refuse the corrected command"


def test_a_temporary_in_use_is_no_leftover(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "file") as file, temporary_folder(tmp_path) as folder:
        (folder / "inside").touch()
        before = everything(tmp_path)
        with FolderLock(tmp_path):
            assert everything(tmp_path) == before
        file.write_text("whole")
    assert everything(tmp_path) == ["file"]


def test_only_our_leftovers_go(tmp_path: Path) -> None:
    strangers = (".sween-abc.tmp", ".sween-ABCDEFGH.tmp", "sween-abcdefgh.tmp", ".file-abcdefgh.md")
    for name in (*strangers, ".sween-abcdefgh.tmp"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".sween-12345678.tmp").mkdir()
    (tmp_path / ".sween-12345678.tmp" / "inside").touch()
    (tmp_path / ".sween-________.tmp").symlink_to(tmp_path / strangers[0])
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == sorted([*strangers, ".sween-________.tmp"])
    remove_leftovers(tmp_path / "absent")


_KILLED = """
    import os, signal, sys
    from pathlib import Path
    from sween.locks import FolderLock, temporary_file, temporary_folder

    with FolderLock(Path(sys.argv[1])) as lock:
        with temporary_file(lock.folder) as file, temporary_folder(lock.folder) as folder:
            file.write_text("half")
            (folder / "file").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(out)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert len(list(out.iterdir())) == 2
    with FolderLock(out):
        assert list(out.iterdir()) == []


def test_a_temporary_taken_for_a_leftover_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its marking another process may find it unmarked."""
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
