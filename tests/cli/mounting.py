"""File systems that are read-only or small, where the machine lets a test mount them."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, *mounts: list[str]) -> Iterator[None]:
    """Mount on a folder by these options of `mount`, one call each; skips where it may not."""
    for options in mounts:
        command = ["mount", *options, str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        except OSError:
            pytest.skip("no mount here")
        if done.returncode != 0:
            pytest.skip("mounting is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=30, check=True)
