"""Killing a run, and comparing what it made with what an uninterrupted one makes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sween.records import read_rows


def kill_when(line: str, reached: Callable[[], bool]) -> None:
    """Start `sween LINE` and kill it (SIGKILL) as soon as it has got that far."""
    command = [sys.executable, "-W", "ignore", "-m", "sween", *line.split()]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while process.poll() is None and not reached():
            time.sleep(0.002)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def contents(folder: Path) -> dict[str, Any]:
    """Everything that was made but for times: rows without seconds, configs, weights."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jsonl":
            drop = {"seconds", "run", "checksum"}
            found[name] = [
                {key: value for key, value in row.items() if key not in drop}
                for row in read_rows(path)
            ]
        elif path.name == "model.safetensors" or path.suffix in (".md", ".csv", ".tex"):
            found[name] = path.read_bytes()
        elif path.name == "config.toml" and "training" in path.parts:
            found[name] = path.read_text()
    return found
