"""Data sets and architectures of one's own: their code is imported only where the caller names it.

Whole walks with them are in tests/test_strangers.py.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import sween
from sween.data import load_dataset
from sween.models import read_manifest
from sween.training import TrainConfig, train
from tests.cli.command import assert_refused, succeed
from tests.cli.conftest import write_member
from tests.test_strangers import SCRIPTS

DATA, NETWORK = "my_data:stripes", "my_net:tiny"


def forget() -> None:
    for name in ("my_data", "my_net"):
        sys.modules.pop(name, None)


@pytest.fixture
def _in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(SCRIPTS)
    yield
    forget()


@pytest.mark.usefixtures("_in_the_users_folder")
def test_both_must_be_named_again_with_every_command(tmp_path: Path) -> None:
    runs = [tmp_path / "runs" / f"tiny-seed{seed}" for seed in (0, 1)]
    line = f"train --dataset {DATA} --arch {NETWORK} --seed 0 --seed 1 --sigma 0.25 --epochs 1"
    said = succeed(f"{line} --device cpu --quiet --out {tmp_path}/runs")
    assert [row.split()[-1] for row in said.splitlines()] == [str(run) for run in runs]
    assert read_manifest(runs[0]).class_names == ("0", "1")
    forget()
    line = f"weigh {runs[0]} {runs[1]} --samples 5 --device cpu --quiet --out {tmp_path}/ensemble"
    assert_refused(line, f"--arch {NETWORK}", watched=(tmp_path,))
    line = f"{line} --arch {NETWORK}"
    assert_refused(line, f"--dataset {DATA}", watched=(tmp_path,))
    assert "my_data" not in sys.modules
    assert_refused(f"{line} --dataset digits", f"expected {DATA}", watched=(tmp_path,))
    assert "tiny-seed1" in succeed(f"{line} --dataset {DATA}")
    assert sween.load(tmp_path / "ensemble", archs=[NETWORK]).dataset == DATA
    line = f"certify {tmp_path}/ensemble --arch {NETWORK} --dataset {DATA} --indices 0:3 --n 100"
    succeed(f"{line} --device cpu --quiet --out {tmp_path}/rows")
    forget()
    line, page = f"report {tmp_path}/rows --out {tmp_path}/report", tmp_path / "report/report.html"
    succeed(line)
    assert "my_data" not in sys.modules
    assert "data:image/png" not in page.read_text(encoding="utf-8")
    succeed(f"{line} --dataset {DATA}")
    assert "data:image/png" in page.read_text(encoding="utf-8")


def test_a_data_set_of_floats_trains(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    parts = [
        (split.all_images()[:200], split.labels[:200]) for split in (digits.train, digits.test)
    ]
    own = sween.data.as_dataset(*parts, name="own")
    config = TrainConfig(dataset="own", arch="digits-conv", sigma=0.25, epochs=1)
    model = train(config, own, tmp_path / "run", quiet=True)
    assert model(own.test.images([0, 1])).shape == (2, 10)


@pytest.mark.parametrize("verb", ["certify {} --all", "attack {} --all --eps 1"])
def test_a_strangers_data_set_is_not_imported(verb: str, tmp_path: Path) -> None:
    """There is no such module, so importing it would be another error."""
    path = write_member(tmp_path, dataset="no_module:make") / "model.safetensors"
    assert torch.isfinite(sween.load(path)(torch.zeros(1, 1, 8, 8))).all()
    line = f"{verb.format(path)} --out {tmp_path}/out"
    assert_refused(line, "no_module:make", "--dataset", watched=(tmp_path,))


@pytest.mark.parametrize("names", [("os:getcwd", "digits"), ("digits-mlp", "os:abc")])
def test_a_recipe_that_names_code_is_not_imported_without_consent(
    names: tuple[str, str], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('arch = "{}"\ndataset = "{}"\nsigma = 0.5\nepochs = 1\n'.format(*names))
    line = f"train --config {recipe} --out {tmp_path}/run"
    assert_refused(line, "without consent", watched=(tmp_path,))
