"""Trained runs, an ensemble and a finished certification, made once for all tests of this folder.

Tests that alter one of them copy it first.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sween.data import load_dataset
from sween.ensemble import load_ensemble, load_members, save_ensemble, weigh
from sween.models import Manifest, create_model, save_checkpoint
from sween.sampling import CertifySettings
from sween.training import TrainConfig, train
from tests.certifying import certify_into
from tests.cli.command import Listing, listing
from tests.cli.forging import Forgery

SIGMA = 0.5
IMAGES = 6


@dataclasses.dataclass(frozen=True)
class Made:
    """The folders that the fixtures made."""

    base: Path
    runs: tuple[Path, ...]
    ensemble: Path
    certificates: Path
    """The ensemble and both members on the first test digits."""

    def fill(self, line: str, tmp: Path) -> str:
        """A command line with its placeholders filled in."""
        return line.format(
            run=self.runs[0],
            runs=" ".join(str(run) for run in self.runs),
            ensemble=self.ensemble,
            certificates=self.certificates,
            tmp=tmp,
            out=tmp / "out",
        )


def train_tiny(out: Path, *, seed: int, sigma: float = SIGMA) -> Path:
    """Two epochs of the digits: seconds, and good enough to certify some."""
    config = TrainConfig(
        dataset="digits", arch="digits-mlp", sigma=sigma, epochs=2, learning_rate=0.1, seed=seed
    )
    train(config, load_dataset("digits"), out, quiet=True)
    return out


def write_member(out: Path, **changes: Any) -> Path:
    """A run folder with an untrained network, with changes to its manifest."""
    values: dict[str, Any] = {
        "arch": "digits-mlp",
        "num_classes": 10,
        "image_shape": (1, 8, 8),
        "dataset": "digits",
        "class_names": tuple("0123456789"),
        "sigma": 0.5,
        "training": {},
    }
    manifest = Manifest(**(values | changes))
    model = create_model(
        manifest.arch, num_classes=manifest.num_classes, image_shape=manifest.image_shape
    )
    save_checkpoint(model, out / "model.safetensors", manifest)
    return out


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def _made(tmp_path_factory: pytest.TempPathFactory, _one_thread: None) -> tuple[Made, Listing]:
    base = tmp_path_factory.mktemp("made")
    digits = load_dataset("digits")
    runs = tuple(train_tiny(base / f"run{seed}", seed=seed) for seed in (1, 2))
    loaded = load_members(runs)
    solution = weigh(loaded, digits, method="uniform", samples=2, quiet=True)
    save_ensemble(loaded, runs, solution, base / "ensemble")
    certify_into(
        base / "certificates",
        load_ensemble(base / "ensemble"),
        digits,
        list(range(IMAGES)),
        CertifySettings(n=200),
        members=True,
    )
    return Made(base, runs, base / "ensemble", base / "certificates"), listing(base)


@pytest.fixture
def made(_made: tuple[Made, Listing]) -> Made:
    """The folders, checked to be as they were made."""
    folders, files = _made
    assert listing(folders.base) == files, "a test altered what all of them share"
    return folders


@pytest.fixture
def forgery(made: Made, tmp_path: Path) -> Forgery:
    """A copy of the finished run, to be altered."""
    return Forgery(Path(shutil.copytree(made.certificates, tmp_path / "run")))
