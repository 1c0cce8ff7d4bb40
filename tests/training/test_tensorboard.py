"""TensorBoard gets the numbers of metrics.jsonl, and is not needed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sween.runs import TrainingRun
from sween.training import train

from .datasets import config, few_digits

CONFIG = config(arch="digits-mlp", epochs=2)


class FakeWriter:
    """Notes what TensorBoard would be told."""

    made: list["FakeWriter"]

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.scalars: list[tuple[str, float, int]] = []
        FakeWriter.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


def pretend(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        if name == "tensorboard":
            return object() if installed else None
        return real(name, package)

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(FakeWriter, "made", [], raising=False)


def test_every_number_of_every_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, installed=True)
    train(CONFIG, few_digits(), tmp_path / "run", quiet=True)
    (writer,) = FakeWriter.made
    assert (writer.folder, writer.purge_step) == (str(tmp_path / "run" / "tensorboard"), 1)
    assert writer.closed
    assert writer.scalars == [
        (name, getattr(row, name), row.epoch)
        for row in TrainingRun.read(tmp_path / "run").metrics
        for name in ("loss", "noisy_accuracy", "seconds")
    ]


def test_without_it_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, installed=False)
    train(CONFIG, few_digits(), tmp_path / "run", quiet=True)
    assert FakeWriter.made == []
    assert not (tmp_path / "run" / "tensorboard").exists()
