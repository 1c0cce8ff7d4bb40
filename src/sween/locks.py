"""Who may write in a folder: one process at a time; and what killed ones left there.

Locks are the kernel's (flock), on the folder itself: they end with the process that holds them,
however it ends, and leave no file behind. They hold among the processes of one machine.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from sween.errors import BadInput, FolderBusy

_PREFIX, _SUFFIX = ".sween-", ".tmp"
_TEMPORARY = re.compile(r"\.sween-[a-z0-9_]{8}\.tmp")
_ATTEMPTS = 100
"""A folder that vanishes so often between two calls is being fought over."""

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class FolderLock:
    """The sole right to write in a folder, from here to the end of the block.

    A folder that is not there is made, and removed again, with the parents made for it, if it is
    still empty at the end. Temporary files that a killed process left in it are removed.

    Raises:
        FolderBusy: somebody else, in this process or another, has the right; nothing was touched.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: list[Path] = []
        self._descriptor = self._lock()
        remove_leftovers(folder)

    def _lock(self) -> int:
        for attempt in range(_ATTEMPTS):
            new = [part for part in (self.folder, *self.folder.parents) if not part.exists()]
            # Whoever holds the lock may remove the folder between any two lines here: then there is
            # nothing to open, or what was opened is a folder that no path leads to any more.
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            self._take(descriptor)
            if _leads_to(self.folder, descriptor):
                self._made = new
                return descriptor
            os.close(descriptor)
        raise self._busy()

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise self._busy() from None
            if error.errno in _NO_LOCKS:
                raise BadInput(
                    str(self.folder),
                    expected="a file system with locks (flock)",
                    got=os.strerror(error.errno),
                    fix="choose another --out",
                ) from None
            raise

    def _busy(self) -> FolderBusy:
        return FolderBusy(
            str(self.folder),
            expected="to be the only one writing there",
            got="another process at work in that folder",
            fix="wait for it, or choose another --out",
        )

    def release(self) -> None:
        """Give the right back; what was made for it and is still empty goes first."""
        if _leads_to(self.folder, self._descriptor):
            with contextlib.suppress(OSError):  # the first that is not empty
                for part in self._made:
                    part.rmdir()
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


@contextlib.contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A new folder in a folder, removed at the end with all that is in it."""
    name = tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    while not _claim(Path(name), descriptor):
        os.close(descriptor)
        name = tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders of ours whose process is gone, as far as one may."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _TEMPORARY.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_unclaimed(Path(entry.path))


def _claim(path: Path, descriptor: int) -> bool:
    """Mark a temporary as one in use; False where somebody took it for a leftover just before."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system: nobody will take it for a leftover either
    return _leads_to(path, descriptor)


def _remove_unclaimed(path: Path) -> None:
    kind = path.lstat().st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        return
    writable = os.O_RDONLY if stat.S_ISDIR(kind) else os.O_RDWR
    descriptor = os.open(path, writable | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(kind):
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(descriptor)


def _leads_to(path: Path, descriptor: int) -> bool:
    """Whether a path still names the very file or folder that is open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
