"""Wherever a file or folder is asked for, a string or any path object will do."""

import dataclasses
import importlib
import inspect
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sween.attack import AttackSettings, attack_dataset, outcomes_file, verify_attacks
from sween.data import load_dataset, read_image
from sween.data.image_folder import load_image_folder
from sween.ensemble import load_ensemble, load_members, load_weightings, save_ensemble, weigh
from sween.errors import BadInput
from sween.models import load_checkpoint, read_manifest, save_checkpoint
from sween.paths import AnyPath, as_paths
from sween.records import read_certificates
from sween.report import load_run, write_report
from sween.report.attacked import load_attacked
from sween.report.published_logs import read_tsv_log
from sween.run_folder import read_config
from sween.runs import TrainingRun, verify_folder
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.training import TrainConfig, read_recipe, train, train_many
from sween.training.recipes import run_folders
from sween.zoo import load
from tests.cli.conftest import Made
from tests.cli.photos import write_photos
from tests.report.folders import write_log

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A path object of some other library."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.mark.parametrize("given", [str, Elsewhere])
def test_every_door_takes_a_path_as_given(given: Callable[[Path], AnyPath], tmp_path: Path) -> None:
    """From a recipe to the report."""
    new = {
        name: given(tmp_path / name)
        for name in ("a", "b", "runs", "copy.safetensors", "ensemble", "run", "attack", "report")
    }
    read_recipe(given(CONFIGS / "fast" / "gaussian.toml"))
    digits = load_dataset("digits")
    config = TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=1)
    assert run_folders([config], new["runs"]) == [tmp_path / "runs"]
    train(config, digits, new["a"], quiet=True)
    train_many([dataclasses.replace(config, seed=1)], digits, [new["b"]], quiet=True)
    assert TrainingRun.read(new["a"]).folder == tmp_path / "a"
    model, manifest = load_checkpoint(new["a"])
    save_checkpoint(model, new["copy.safetensors"], manifest)
    assert read_manifest(new["copy.safetensors"]) == read_manifest(new["a"])
    members = load_members([new["a"], new["b"]])
    solution = weigh(members, digits, method="uniform", samples=1, quiet=True)
    save_ensemble(members, [new["a"], new["b"]], solution, new["ensemble"])
    loaded = load_ensemble(new["ensemble"])
    assert load(new["ensemble"]).fingerprint == loaded.fingerprint
    assert list(load_weightings(loaded, [new["ensemble"]])) == ["ensemble"]
    known: dict[str, Any] = {
        "sigma": loaded.sigma,
        "num_classes": loaded.num_classes,
        "name": loaded.name,
    }
    smoothed = SmoothedClassifier(loaded, **known)
    settings = CertifySettings(n=100)
    certify_dataset(smoothed, digits, out=new["run"], indices=[0], settings=settings, quiet=True)
    assert verify_folder(new["run"]).rows == len(read_certificates(new["run"])) == 1
    assert read_config(new["run"])["indices"] == "0"
    assert load_run(new["run"]).name == "run"
    pgd = AttackSettings(attack="pgd", eps=(0.25,), samples=2, steps=1, n=100)
    attack_dataset(loaded, digits, [0], pgd, new["attack"], classifier=smoothed, quiet=True)
    assert outcomes_file(new["attack"]) == tmp_path / "attack" / "attacks.jsonl"
    verify_attacks(new["attack"])
    assert load_attacked(new["attack"]).name == "attack"
    report = write_report([new["run"], new["attack"]], new["report"])
    assert report.with_name("report.html").read_text()
    assert len(read_tsv_log(given(write_log(tmp_path / "log.tsv", (0, 1, "0.5")))).indices) == 1
    photos = write_photos(tmp_path / "photos")
    read_image(given(photos / "val/cat/0.png"), image_shape=None, channels=3)
    for read in (load_image_folder(given(photos)), load_dataset("image_folder", given(photos))):
        assert len(read.test) == 12


def test_one_path_is_not_a_list_of_paths(made: Made, tmp_path: Path) -> None:
    """The letters of a string are strings: each would be taken for a path."""
    with pytest.raises(BadInput, match=r"runs: expected a list of paths, got '.*'; put it in a"):
        load_members(str(made.runs[0]))
    with pytest.raises(BadInput, match="folders: expected a list of paths"):
        write_report(str(made.certificates), tmp_path / "report")
    assert as_paths("runs", ("a", Path("b"))) == [Path("a"), Path("b")]


ROOMS = ("data", "models", "training", "ensemble", "zoo", "smoothing", "attack", "report")


@pytest.mark.parametrize("room", ROOMS)
def test_no_public_function_takes_path_objects_alone(room: str) -> None:
    module = importlib.import_module(f"sween.{room}")
    names = getattr(module, "__all__", ["load"])
    functions = [getattr(module, name) for name in names]
    narrow = []
    for function in filter(inspect.isfunction, functions):
        for name, parameter in inspect.signature(function).parameters.items():
            parts = _parts(parameter.annotation)
            if Path in parts or (os.PathLike[str] in parts and str not in parts):
                narrow.append(f"{function.__name__}: {name}")
    assert narrow == []


def _parts(hint: Any) -> set[Any]:
    """A type and everything it is made of."""
    if hint == os.PathLike[str]:
        return {hint}
    return {hint}.union(*(_parts(part) for part in typing.get_args(hint)))
