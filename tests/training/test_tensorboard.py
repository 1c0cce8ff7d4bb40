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


class FakeWriter:
    """Records what TensorBoard would be given."""

    made: list["FakeWriter"]

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.scalars: list[tuple[str, float, int]] = []
        FakeWriter.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("installed", [True, False])
def test_every_number_of_every_epoch(
    installed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return installed or None if name == "tensorboard" else real(name, package)

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(FakeWriter, "made", [], raising=False)
    train(config(arch="digits-mlp", epochs=2), few_digits(), tmp_path / "run", quiet=True)
    if not installed:
        assert FakeWriter.made == []
        return
    (writer,) = FakeWriter.made
    assert (writer.folder, writer.purge_step) == (str(tmp_path / "run" / "tensorboard"), 1)
    assert writer.closed
    assert writer.scalars == [
        (name, getattr(row, name), row.epoch)
        for row in TrainingRun.read(tmp_path / "run").metrics
        for name in ("loss", "noisy_accuracy", "seconds")
    ]
