"""Every CUDA graph has workspaces of its own; tests/gpu shows what goes wrong otherwise."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sween
from sween.cuda import capturing

SOURCE = Path(sween.__file__).parent


def test_graphs_are_captured_in_one_place() -> None:
    pattern = re.compile(r"torch\.cuda\.graph\(|\.capture_begin\(|make_graphed_callables")
    found = [path for path in SOURCE.rglob("*.py") if pattern.search(path.read_text())]
    assert found == [SOURCE / "cuda" / "capture.py"]


@pytest.mark.parametrize("fails", [False, True])
def test_workspaces_are_dropped_before_and_after(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    done: list[Any] = []

    @contextlib.contextmanager
    def graph(captured: Any, *, stream: Any, capture_error_mode: str) -> Iterator[None]:
        done.append(("begin", captured, stream, capture_error_mode))
        yield
        done.append("end")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("drop"), raising=False
    )
    expected: Any = pytest.raises(RuntimeError) if fails else contextlib.nullcontext()
    with expected, capturing("graph", "stream", error_mode="thread_local"):  # type: ignore[arg-type]
        done.append("work")
        if fails:
            raise RuntimeError
    begun = ("begin", "graph", "stream", "thread_local")
    assert done == ["drop", begun, "work", *([] if fails else ["end"]), "drop"]
