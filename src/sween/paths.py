"""Paths as callers give them, strings or path objects, converted once at the door."""

import os
from collections.abc import Iterable
from pathlib import Path

from sween.errors import BadInput

AnyPath = str | os.PathLike[str]
"""Of every argument that names a file or folder."""


def as_paths(what: str, paths: Iterable[AnyPath]) -> list[Path]:
    """Several paths; a lone one is refused, since the letters of a string are strings too."""
    if isinstance(paths, str | os.PathLike):
        raise BadInput(
            what,
            expected="a list of paths",
            got=repr(os.fspath(paths)),
            fix="put it in a list",
        )
    return [Path(path) for path in paths]
