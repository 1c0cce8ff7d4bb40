"""Compiled code kept on disk between processes, and a compiler that does not talk to the terminal.

torch's compiler looks its results up by the graph, the shapes, its version and the GPU; those of
its searches ("autotuning") too. By default it keeps them in a temporary folder.
"""

import contextlib
import datetime
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch

from sween.engine.tracing import TRACING
from sween.errors import PreparationWarning
from sween.paths import CACHE_VARIABLE, cache_folder

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Of torch: where it keeps compiled code."""

TORCHS_OWN = os.path.join(tempfile.gettempdir(), "torchinductor_")
"""How the folder begins that torch sets the variable to where the caller did not."""

MAX_LOG_BYTES = 10 * 2**20
"""The log starts anew beyond this size."""

_NAMED = set[str]()
"""Log files that were already mentioned: one line for each is enough."""

_LOG = logging.getLogger(__name__)


def compiled_folder(device: torch.device) -> Path:
    """For code compiled by this version of torch for this kind of device."""
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    name = re.sub(r"[^\w.+-]+", "-", f"torch-{torch.__version__}-{kind}")
    return cache_folder() / "compiled" / name


@contextlib.contextmanager
def compiling(what: str, device: torch.device) -> Iterator[None]:
    """For a block that compiles: results go to the cache folder, output to a log file there.

    Args:
        what: is compiled, for the log.
        device: it is compiled for.
    """
    try:
        folder = compiled_folder(device)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = _open(folder / "compile.log")
    except OSError as error:
        message = f"compiled code is not cached: {error}; set {CACHE_VARIABLE} to a usable folder"
        warnings.warn(message, PreparationWarning, stacklevel=3)
        yield
        return
    with log, TRACING:  # one thread at a time: the streams belong to the process
        log.write(f"{datetime.datetime.now(datetime.UTC):%F %T} {what}\n")
        if log.name not in _NAMED:
            _NAMED.add(log.name)
            message = "%s; the compiler's output goes to %s"
            _LOG.info(message, what, log.name)
        with _all_output_to(log), _kept_in(folder):
            yield


@contextlib.contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Let torch keep what it compiles in this folder, unless the caller chose another."""
    before = os.environ.get(FOLDER_VARIABLE)
    if before is None or before.startswith(TORCHS_OWN):
        os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FOLDER_VARIABLE, None)
        else:
            os.environ[FOLDER_VARIABLE] = before


def _open(path: Path) -> TextIO:
    fresh = not path.exists() or path.stat().st_size > MAX_LOG_BYTES
    return path.open("w" if fresh else "a", encoding="utf-8", errors="replace")


@contextlib.contextmanager
def _all_output_to(log: TextIO) -> Iterator[None]:
    """Send this process's output, C++ code's and child processes' included, to a file."""
    kept = dict[int, int]()
    for stream in (sys.stdout, sys.stderr, log):
        stream.flush()
    with contextlib.suppress(OSError):  # a daemon may have closed its streams
        for descriptor in (1, 2):
            kept[descriptor] = os.dup(descriptor)
            os.dup2(log.fileno(), descriptor)
    try:
        # Python's streams need not be the process's, as in a notebook.
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        log.flush()
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)
