"""Compiled kernels kept on disk between processes.

A file has one kernel's machine code, under a name that stands for all that it was compiled from.
The code will run, so a file counts only if it belongs to this user, cannot be written by others,
and has the digest it was written with; else the kernel is compiled again.
"""

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sween.paths import cache_folder

FORMAT = "sween kernel 1"

LARGEST = 2**26
"""Bytes of a file that is read: a kernel has far fewer."""


class KernelCode(NamedTuple):
    """Machine code.

    Attributes:
        entry: the kernel's name in it.
        code: for the driver.
    """

    entry: str
    code: bytes


def kept_code(made_from: Mapping[str, object], compile: Callable[[], KernelCode]) -> KernelCode:
    """The code of a kernel, from the disk if it is there.

    No failure to read or write is an error: the kernel is compiled, and kept if that works.

    Args:
        made_from: all that the code depends on: source, options, GPU and versions.
        compile: compiles it.
    """
    text = json.dumps({"format": FORMAT, **made_from}, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    path = cache_folder() / "compiled" / "kernels" / f"{key}.kernel"
    known = _read(path, key)
    if known is None:
        known = compile()
        with contextlib.suppress(OSError):
            _write(path, key, known)
    return known


def _read(path: Path, key: str) -> KernelCode | None:
    """What a file has; None if there is none, or one that is not to be trusted."""
    try:
        if not _is_ours(os.stat(path.parent)):
            return None
        with path.open("rb") as stream:  # its state and its content are then of one file
            if not _is_ours(os.fstat(stream.fileno())):
                return None
            content = stream.read(LARGEST)
        digest, entry, code = content.split(b"\n", 2)
        known = KernelCode(entry.decode(), code)
    except (OSError, ValueError):  # too few lines, or not text
        return None
    return known if digest.decode(errors="replace") == _digest(key, known) else None


def _write(path: Path, key: str, known: KernelCode) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp's files are this user's alone; renamed when complete, so that nobody reads a part.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".kernel-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(f"{_digest(key, known)}\n{known.entry}\n".encode() + known.code)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _digest(key: str, known: KernelCode) -> str:
    return hashlib.sha256(f"{key}\n{known.entry}\n".encode() + known.code).hexdigest()


def _is_ours(status: os.stat_result) -> bool:
    """Whether this user owns a file or folder and nobody else can write to it."""
    if not hasattr(os, "getuid"):  # Windows keeps a user's folders from others
        return True
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
