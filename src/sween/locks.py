"""Folder locks: one writer at a time, and removal of temporary files left by killed processes.

Locks are the kernel's (flock), on the folder itself: they end with the process that holds them,
however it ends, and leave no file behind. On file systems that can only lock files, such as network
file systems, a file in the folder is locked instead. Locks apply to the processes of one machine.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from sween.errors import BadInput, FolderBusy

_PREFIX, _SUFFIX = ".sween-", ".tmp"
_TEMPORARY = re.compile(r"\.sween-[a-z0-9_]{8}\.tmp")
_LOCK_FILE = ".sween-lock"
"""Not the name of a temporary file: if a killed process leaves it behind, only the next writer
locks and removes it."""

_ATTEMPTS = 100
"""After this many disappearances of the folder between two calls, report it as busy."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_NO_FOLDER_LOCKS = (errno.EBADF, *_NO_LOCKS)
"""These apply to every folder of a file system, so all processes lock the file instead. EBADF: NFS
emulates flock by byte-range locks, which need a file open for writing; a folder cannot be."""


class FolderLock:
    """An exclusive lock on writing to a folder, held until the end of the block.

    A missing folder is created; if it is still empty at the end, it is removed together with the
    parents created for it. Temporary files left there by killed processes are removed.

    Raises:
        FolderBusy: another thread or process holds the lock; nothing was changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: list[Path] = []
        self._locked = folder
        self._descriptor = self._lock()
        remove_leftovers(folder)

    def _lock(self) -> int:
        for attempt in range(_ATTEMPTS):
            parts = (self.folder, *self.folder.parents)
            self._made = [part for part in parts if not part.exists()]
            # The holder of the lock may remove the folder between any two lines here: then there is
            # nothing to open, or the folder that was opened no longer has a path.
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = self._take()
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            except FileExistsError as error:
                _refuse_broken_link(Path(error.filename))
                if os.path.lexists(
                    error.filename
                ):  # else it disappeared between two calls of mkdir
                    raise
                continue
            if _leads_to(self._locked, descriptor):
                return descriptor
            os.close(descriptor)
        raise self._busy()

    def _take(self) -> int:
        try:
            self._locked = self.folder
            return _open_locked(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except BlockingIOError:
            raise self._busy() from None
        except OSError as error:
            if error.errno == errno.ENOLCK:
                raise self._no_locks(error) from None
            if error.errno not in _NO_FOLDER_LOCKS:
                raise
        try:
            self._locked = self.folder / _LOCK_FILE
            return _open_locked(self._locked, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except BlockingIOError:
            raise self._busy() from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                self._locked.unlink(missing_ok=True)  # no other process can have locked it either
                self._remove_made()
            if error.errno in (errno.ENOLCK, *_NO_LOCKS):
                raise self._no_locks(error) from None
            error.filename = str(self.folder)
            raise

    def _busy(self) -> FolderBusy:
        return FolderBusy(
            str(self.folder),
            expected="no other writer",
            got="another process or thread writing to that folder",
            fix="wait for it, or choose another folder",
        )

    def _no_locks(self, error: OSError) -> BadInput:
        return BadInput(
            str(self.folder),
            expected="a file system with locks (flock)",
            got=error.strerror,
            fix="choose another folder",
        )

    def release(self) -> None:
        """Release the lock; remove folders that were created for it and are still empty."""
        ours = _leads_to(self._locked, self._descriptor)
        if self._locked == self.folder:
            if ours:
                self._remove_made()
            os.close(self._descriptor)
            return
        if ours:
            self._locked.unlink(missing_ok=True)
        # NFS keeps an open file in its folder until it is closed. A process that has taken the lock
        # by now also has a file there, so the folder is not empty and is kept.
        os.close(self._descriptor)
        self._remove_made()

    def _remove_made(self) -> None:
        with contextlib.suppress(OSError):  # stops at the first that is not empty
            for part in self._made:
                part.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@contextlib.contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """A new empty file in a folder, removed at the end if it is still there under that name."""
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
    while not _claim(Path(name), descriptor):
        os.close(descriptor)
        descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove sween's temporary files whose process has ended, as far as permissions allow."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _TEMPORARY.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_unclaimed(Path(entry.path))


def is_hidden_entry(name: str) -> bool:
    """Whether a name is one that sween gives to its temporary files and folders."""
    return name.startswith(_PREFIX)


def _claim(path: Path, descriptor: int) -> bool:
    """Mark a temporary file as in use; False if another process just removed it as a leftover."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system, so no process can remove it as a leftover
    return _leads_to(path, descriptor)


def _remove_unclaimed(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        return
    descriptor = _open_locked(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        path.unlink()
    finally:
        os.close(descriptor)


def _open_locked(path: Path, flags: int) -> int:
    """Open and lock; BlockingIOError if the lock is already held."""
    descriptor = os.open(path, flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_broken_link(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise BadInput(
            f"{path}: expected a folder, got a link to {path.readlink()}, which does not exist; "
            "create that folder, or choose another folder"
        )


def _leads_to(path: Path, descriptor: int) -> bool:
    """Whether a path still refers to the open file or folder."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
