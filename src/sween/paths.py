"""Paths given by callers, converted once in the public functions, and the cache folder."""

import os
from collections.abc import Iterable
from pathlib import Path

from sween.errors import BadInput

AnyPath = str | os.PathLike[str]
"""The type of every argument that names a file or folder."""

CACHE_VARIABLE = "SWEEN_CACHE"
"""Environment variable that overrides the cache folder."""


_LONGEST_NAME = 255
"""Bytes of a file's name; longer ones are an error of the file system, not a missing file."""


def cache_folder() -> Path:
    """$SWEEN_CACHE, or sween in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sween"


def as_path(what: str, path: AnyPath) -> Path:
    """A path; refuses what cannot be one."""
    if not isinstance(path, str | os.PathLike):
        raise BadInput(what, expected="a path", got=repr(path), fix="pass a string")
    if max((len(os.fsencode(part)) for part in Path(path).parts), default=0) > _LONGEST_NAME:
        got = f"one of {len(os.fspath(path)):,} characters"
        raise BadInput(what, expected="a path that can exist", got=got, fix="check it")
    return Path(path)


def as_paths(what: str, paths: Iterable[AnyPath]) -> list[Path]:
    """A list of paths; a single path is refused, since iterating a string gives its characters."""
    if isinstance(paths, str | os.PathLike):
        raise BadInput(
            f"{what}: expected a list of paths, got {os.fspath(paths)!r}; put it in a list"
        )
    return [as_path(what, path) for path in paths]


def as_folder(what: str, path: AnyPath) -> Path:
    """A folder to write to, which may be new; refuses anything that cannot be one."""
    if not isinstance(path, str | os.PathLike):
        raise BadInput(what, expected="a path", got=repr(path), fix="pass a folder, new or not")
    if Path(path).exists() and not Path(path).is_dir():
        raise BadInput(what, expected="a folder", got=f"the file {path}", fix="name another")
    return Path(path)
