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

from sween.attack import (
    AttackSettings,
    attack_dataset,
    outcomes_file,
    verify_attacks,
)
from sween.data import load_dataset, read_image
from sween.data.image_folder import load_image_folder
from sween.ensemble import (
    load_ensemble,
    load_members,
    load_weightings,
    save_ensemble,
    weigh,
)
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

AsGiven = Callable[[Path], AnyPath]
QUICK = TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=1)
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A path object of some other library."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)


@dataclasses.dataclass(frozen=True)
class Place:
    """What a door is opened with."""

    made: Made
    tmp: Path
    given: AsGiven

    def new(self, name: str) -> AnyPath:
        return self.given(self.tmp / name)


def _save_ensemble(at: Place) -> object:
    loaded = load_members([at.given(run) for run in at.made.runs])
    solution = weigh(loaded, load_dataset("digits"), method="uniform", samples=1, quiet=True)
    save_ensemble(loaded, [at.given(run) for run in at.made.runs], solution, at.new("saved"))
    return load_ensemble(at.new("saved"))


def _certify(at: Place) -> object:
    digits, settings = load_dataset("digits"), CertifySettings(n=100)
    loaded = load_ensemble(at.made.ensemble)
    smoothed = SmoothedClassifier(loaded, sigma=loaded.sigma, num_classes=loaded.num_classes)
    out = at.new("certified")
    return certify_dataset(smoothed, digits, out=out, indices=[0], settings=settings, quiet=True)


def _attack(at: Place) -> object:
    loaded = load_ensemble(at.made.ensemble)
    settings = AttackSettings(attack="pgd", eps=(0.25,), samples=2, steps=1, n=100)
    classifier = SmoothedClassifier(
        loaded, sigma=loaded.sigma, num_classes=loaded.num_classes, name=loaded.name
    )
    attack_dataset(
        loaded,
        load_dataset("digits"),
        [0],
        settings,
        at.new("attacked"),
        classifier=classifier,
        quiet=True,
    )
    load_attacked(at.new("attacked"))
    assert outcomes_file(at.new("attacked")) == at.tmp / "attacked" / "attacks.jsonl"
    return verify_attacks(at.new("attacked"))


def _photos(at: Place) -> object:
    root = at.given(write_photos(at.tmp / "photos"))
    read_image(at.given(at.tmp / "photos/val/cat/0.png"), image_shape=None, channels=3)
    return load_image_folder(root), load_dataset("image_folder", root)


def _save_checkpoint(at: Place) -> object:
    model, manifest = load_checkpoint(at.given(at.made.runs[0]))
    save_checkpoint(model, at.new("copy.safetensors"), manifest)
    return read_manifest(at.new("copy.safetensors"))


def _log(at: Place) -> object:
    (at.tmp / "log.tsv").write_text(
        "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.5\t1\t1\n"
    )
    return read_tsv_log(at.new("log.tsv"))


def _page(at: Place) -> object:
    report = write_report([at.given(at.made.certificates)], at.new("report"))
    assert report.with_name("report.html").read_text()
    return report


DOORS: dict[str, Callable[[Place], object]] = {
    "load": lambda at: load(at.given(at.made.ensemble)),
    "load_ensemble": lambda at: load_ensemble(at.given(at.made.ensemble)),
    "load_weightings": lambda at: load_weightings(
        load_ensemble(at.made.ensemble), [at.given(at.made.ensemble)]
    ),
    "save_ensemble": _save_ensemble,
    "load_checkpoint": lambda at: load_checkpoint(at.given(at.made.runs[0] / "model.safetensors")),
    "save_checkpoint": _save_checkpoint,
    "load_dataset": _photos,
    "train": lambda at: train(QUICK, load_dataset("digits"), at.new("run"), quiet=True),
    "train_many": lambda at: train_many(
        [QUICK, dataclasses.replace(QUICK, seed=1)],
        load_dataset("digits"),
        [at.new("one"), at.new("two")],
        quiet=True,
    ),
    "TrainingRun.read": lambda at: TrainingRun.read(at.given(at.made.runs[0])),
    "read_recipe": lambda at: read_recipe(at.given(CONFIGS / "fast" / "gaussian.toml")),
    "run_folders": lambda at: run_folders([QUICK], at.new("runs")),
    "certify_dataset": _certify,
    "verify_folder": lambda at: verify_folder(at.given(at.made.certificates)),
    "read_certificates": lambda at: read_certificates(at.given(at.made.certificates)),
    "read_config": lambda at: read_config(at.given(at.made.certificates)),
    "attack_dataset": _attack,
    "load_run": lambda at: load_run(at.given(at.made.certificates)),
    "write_report": _page,
    "read_tsv_log": _log,
}


@pytest.mark.parametrize("given", [str, Elsewhere])
@pytest.mark.parametrize("door", DOORS)
def test_a_path_is_taken_as_given(door: str, given: AsGiven, made: Made, tmp_path: Path) -> None:
    DOORS[door](Place(made, tmp_path, given))


def test_one_path_is_not_a_list_of_paths(made: Made, tmp_path: Path) -> None:
    """The letters of a string are strings: each would be taken for a path."""
    run = str(made.runs[0])
    with pytest.raises(BadInput, match=r"runs: expected a list of paths, got '.*'; put it in a"):
        load_members(run)
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
