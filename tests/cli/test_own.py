"""A data set and an architecture of one's own: a file each, through the command line and Python."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import sween
from sween.data import load_dataset
from sween.ensemble import load_members, save_ensemble, weigh
from sween.models import Manifest, create_model, read_manifest, save_checkpoint
from sween.training import TrainConfig, train
from tests.cli.command import assert_refused, run_line, succeed

DATA, NETWORK = "toy_data:make", "toy_network:Toy"

TOY_DATA = """
import numpy as np
from torch.utils.data import Dataset

class Stripes(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        image = np.random.default_rng(index).integers(0, 80, (6, 6, 1), dtype=np.uint8)
        image[:, 3 * (index % 2) : 3 * (index % 2) + 3] += 150
        return image, index % 2

def make():
    return Stripes(100), Stripes(20), ["left", "right"]
"""

TOY_NETWORK = """
from torch import nn

class Toy(nn.Sequential):
    def __init__(self, num_classes, image_shape):
        channels, height, width = image_shape
        super().__init__(nn.Flatten(), nn.Linear(channels * height * width, num_classes))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with both files."""
    (tmp_path / "toy_data.py").write_text(TOY_DATA)
    (tmp_path / "toy_network.py").write_text(TOY_NETWORK)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("toy_data", "toy_network"):
        sys.modules.pop(name, None)


def test_the_command_line(here: Path) -> None:
    line = f"train --dataset {DATA} --arch {NETWORK} --seed 0 --seed 1 --sigma 0.25 --epochs 1"
    said = succeed(f"{line} --batch-size 8 --out runs --device cpu --quiet")
    assert f"trained {NETWORK} on {DATA}" in said
    runs = "runs/Toy-seed0 runs/Toy-seed1"
    assert read_manifest("runs/Toy-seed0").class_names == ("left", "right")
    forget()
    weighing = f"weigh {runs} --samples 5 --device cpu --quiet --out ensemble"
    own = f"--arch {NETWORK} --dataset {DATA}"
    assert_refused(weighing, f"--arch {NETWORK}", watched=(here,))
    assert_refused(f"{weighing} --arch {NETWORK}", f"--dataset {DATA}", watched=(here,))
    assert "toy_data" not in sys.modules
    assert_refused(
        f"{weighing} --arch {NETWORK} --dataset digits", f"expected {DATA}", watched=(here,)
    )
    assert "Toy-seed1" in succeed(f"{weighing} {own}")
    assert sween.load("ensemble", archs=[NETWORK]).dataset == DATA


@pytest.mark.usefixtures("here")
def test_the_same_in_python(tmp_path: Path) -> None:
    dataset = load_dataset(DATA)
    runs = [tmp_path / f"run{seed}" for seed in (0, 1)]
    for seed, run in enumerate(runs):
        config = TrainConfig(
            dataset=DATA, arch=NETWORK, sigma=0.25, epochs=1, batch_size=8, seed=seed
        )
        train(config, dataset, run, quiet=True)
    loaded = load_members(runs, archs=[NETWORK])
    solution = weigh(loaded, dataset, samples=5, quiet=True)
    save_ensemble(loaded, runs, solution, tmp_path / "ensemble")
    ensemble = sween.load(tmp_path / "ensemble", archs=[NETWORK])
    right = ensemble(dataset.test.images(range(20))).argmax(1) == dataset.test.labels
    assert right.float().mean() > 0.9


def test_a_data_set_of_floats_trains(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    parts = [
        (split.all_images()[:200], split.labels[:200]) for split in (digits.train, digits.test)
    ]
    own = sween.data.as_dataset(*parts, name="own")
    config = TrainConfig(dataset="own", arch="digits-conv", sigma=0.25, epochs=1)
    model = train(config, own, tmp_path / "run", quiet=True)
    assert model(own.test.images([0, 1])).shape == (2, 10)


@pytest.mark.parametrize(
    "verb", ["certify {} --all --out out", "attack {} --all --eps 1 --out out"]
)
def test_a_strangers_data_set_is_not_imported(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sween.factories.importlib", None)
    manifest = Manifest(
        arch="digits-mlp",
        num_classes=10,
        image_shape=(1, 8, 8),
        dataset="os:system",
        class_names=tuple("0123456789"),
        sigma=0.5,
        training={},
    )
    model = create_model("digits-mlp", num_classes=10, image_shape=(1, 8, 8))
    path = tmp_path / "model.safetensors"
    save_checkpoint(model, path, manifest)
    assert torch.isfinite(sween.load(path)(torch.zeros(1, 1, 8, 8))).all()
    assert_refused(verb.format(path), "os:system", "--dataset", watched=(tmp_path,))


def test_a_recipe_that_names_code_is_not_imported_without_consent(tmp_path: Path) -> None:
    for line in (
        'arch = "os:getcwd"\ndataset = "digits"',
        'arch = "digits-mlp"\ndataset = "os:abc"',
    ):
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(f"{line}\nsigma = 0.5\nepochs = 1\n")
        code, _, stderr = run_line(f"train --config {recipe} --out {tmp_path / 'run'}")
        assert (code, stderr.count("\n")) == (2, 1)
        assert "without consent" in stderr
        assert not (tmp_path / "run").exists()
