"""Changed code of a custom network is seen, although its weights are the same."""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import sween
from sween.errors import CheckpointError
from sween.models import create_model, load_checkpoint
from sween.models.source_code import source_digest
from sween.run_folder import read_config
from sween.training import TrainConfig, train
from tests.training.datasets import config, few_digits, interrupted

FACTORY = "own_code:make"
SOURCE = """
from torch import nn
def make(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, num_classes))
"""
CONFIG = config(arch=FACTORY, epochs=2)


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
    train(config(epochs=1), few_digits(), tmp_path, quiet=True)
    assert "source_code" not in read_config(tmp_path)


def test_of_a_script_only_the_class_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook or script may change elsewhere between kill and resume."""
    net = "from torch import nn\nclass Net(nn.Module):\n    scale = 1\n"

    def digest(source: str) -> str | None:
        path = tmp_path / f"script{len(source)}.py"
        path.write_text(source)
        script = types.ModuleType("__main__")
        script.__file__ = str(path)
        exec(compile(source, path, "exec"), script.__dict__)
        monkeypatch.setitem(sys.modules, "__main__", script)
        return source_digest(script.Net())

    assert digest(net) == digest(net + "epochs = 100\n") is not None
    assert digest(net) != digest(net.replace("scale = 1", "scale = 10"))


def test_training_does_not_resume_with_changed_code(
    tmp_path: Path, write: Callable[[str], None]
) -> None:
    interrupted(CONFIG, few_digits(), tmp_path / "run", 5)
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

    def certify(model: nn.Module, out: Path) -> dict[str, Any]:
        smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=10)
        sween.certify_dataset(smoothed, data, out=out, indices=range(2), n=200, quiet=True)
        return read_config(out)

    out = tmp_path / "out"
    assert "source_code" in certify(sween.load(tmp_path / "run", archs=[FACTORY]), out)
    write(SOURCE + "# a comment\n")
    with pytest.raises(CheckpointError, match=r"another config \(source_code \w{8}\.\.\. -> "):
        certify(sween.load(tmp_path / "run", archs=[FACTORY]), out)
    # The module alone consists of torch's classes, whose names are in its fingerprint.
    module, _ = load_checkpoint(tmp_path / "run", arch=FACTORY)
    assert "source_code" not in certify(module, tmp_path / "module")
