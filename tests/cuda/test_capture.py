"""Every CUDA graph has workspaces of its own."""

import re
from pathlib import Path

import sween

SOURCE = Path(sween.__file__).parent


def test_graphs_are_captured_in_one_place() -> None:
    """tests/gpu shows what goes wrong with graphs that are captured by torch alone."""
    pattern = re.compile(r"torch\.cuda\.graph\(|\.capture_begin\(|make_graphed_callables")
    found = [path for path in SOURCE.rglob("*.py") if pattern.search(path.read_text())]
    assert found == [SOURCE / "cuda" / "capture.py"]
