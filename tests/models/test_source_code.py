"""Changed code of a custom network is seen, although its weights are the same."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import sween
from sween.errors import CheckpointError
from sween.models import create_model, load_checkpoint
from sween.models.source_code import source_digest
from sween.run_folder import read_config
from sween.training import TrainConfig, train
from sween.training.trainer import Trainer
from tests.training.datasets import few_digits

FACTORY = "own_code:make"
SOURCE = """
from torch import nn
def make(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, num_classes))
"""
CONFIG = TrainConfig(dataset="digits", arch=FACTORY, sigma=0.5, epochs=2, batch_size=16)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module of a custom network, and imports it again."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> None:
        (tmp_path / "own_code.py").write_text(source)
        sys.modules.pop("own_code", None)
        importlib.invalidate_caches()

    write(SOURCE)
    yield write
    sys.modules.pop("own_code", None)


def test_built_in_networks_have_no_custom_code(tmp_path: Path) -> None:
    for name in ("digits-mlp", "resnet20"):
        model = create_model(name, num_classes=10, image_shape=(1, 8, 8))
        assert source_digest(model, [name]) is None
    train(
        TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=1),
        few_digits(),
        tmp_path,
        quiet=True,
    )
    assert "source_code" not in read_config(tmp_path)


def test_training_does_not_resume_with_changed_code(
    tmp_path: Path, write: Callable[[str], None]
) -> None:
    steps = Trainer(CONFIG, few_digits(), tmp_path / "run", device=torch.device("cpu")).run()
    for _ in range(5):
        next(steps)
    steps.close()
    write(SOURCE.replace("ReLU", "GELU"))
    with pytest.raises(CheckpointError, match=r"run with another config \(source_code "):
        train(CONFIG, few_digits(), tmp_path / "run", quiet=True)
    write(SOURCE)
    train(CONFIG, few_digits(), tmp_path / "run", quiet=True)
    assert TrainConfig.from_dict(read_config(tmp_path / "run")) == CONFIG


def test_certification_does_not_resume_with_changed_code(
    tmp_path: Path, write: Callable[[str], None]
) -> None:
    train(CONFIG, few_digits(), tmp_path / "run", quiet=True)
    data = sween.load_dataset("digits")

    def certify(loaded: bool) -> None:
        folder = tmp_path / "run"
        model = (
            sween.load(folder, archs=[FACTORY])
            if loaded
            else load_checkpoint(folder, arch=FACTORY)[0]
        )
        smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=10)
        out = tmp_path / f"out{loaded}"
        sween.certify_dataset(smoothed, data, out=out, indices=range(2), n=200, quiet=True)

    certify(loaded=True)
    assert "source_code" in read_config(tmp_path / "outTrue")
    write(SOURCE + "# a remark\n")
    with pytest.raises(CheckpointError, match=r"another config \(source_code \w{8}\.\.\. -> "):
        certify(loaded=True)
    certify(loaded=False)  # built of torch's classes alone: their names are in its fingerprint
    assert "source_code" not in read_config(tmp_path / "outFalse")
