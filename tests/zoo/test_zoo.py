"""The zoo: listed, loaded offline, small, and consistent with results/."""

import importlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import sween
from sween.data import load_dataset
from sween.errors import BadInput, CheckpointError, UnknownName
from sween.records import read_certificates
from sween.run_folder import read_config
from sween.runs import CertificationConfig
from sween.zoo import MODELS, list_zoo, load, pack
from tests.cli.command import succeed

ROOT = Path(__file__).parents[2]
NAMES = [entry.name for entry in list_zoo() if not entry.installed]


def test_the_wheel_stays_under_30_megabytes(tmp_path: Path) -> None:
    """Its files, compressed as a wheel is; a release of more models goes by `sween zoo pack`."""
    wheel = tmp_path / "wheel.zip"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in (MODELS.parents[1], ROOT / "configs"):
            for file in folder.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file)
    assert wheel.stat().st_size < 30e6


def test_the_tracked_tree_stays_under_40_megabytes() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert sum(file.lstat().st_size for file in files if file.exists()) < 40e6


def test_measured_numbers_match_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "argv", ["update_zoo.py", "--check"])
    assert importlib.import_module("update_zoo").main() == 0, "run docs/update_zoo.py"


@pytest.mark.parametrize("name", NAMES)
def test_measured_numbers_recomputed_by_hand(name: str) -> None:
    measured = next(entry.measured for entry in list_zoo() if entry.name == name)
    rows = [
        row
        for row in read_certificates(ROOT / "results" / measured["results"])
        if row.model == f"SWEEN-{len(measured['acr_members'])}"
    ]
    right = [row for row in rows if row.prediction == row.label]
    assert len(rows) == measured["images"]
    assert sum(row.radius_cohen or 0 for row in right) / len(rows) == pytest.approx(measured["acr"])
    share = sum((row.radius_cohen or 0) >= 0.5 for row in right) / len(rows)
    assert measured["certified_accuracy"]["0.50"] == pytest.approx(share)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("cifar10")])
def test_the_certified_ensemble_is_the_one_that_ships(name: str) -> None:
    """Members and weights to the last bit, under the same name as its folder in results/."""
    ensemble, results = load(name), ROOT / "results" / name
    config = CertificationConfig.read(results).content
    assert config["fingerprint"] == ensemble.fingerprint
    assert config["candidates"] == list(ensemble.member_names)
    assert config["weights"] == ensemble.weights.tolist()
    members = [manifest.fingerprint for manifest in ensemble.manifests]
    for solution in (results / "weights").iterdir():
        assert read_config(solution)["fingerprints"] == members


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("sween6" in name)) for name in NAMES]
)
def test_every_model_loads_and_answers(name: str) -> None:
    ensemble = sween.load(name)
    assert isinstance(ensemble, sween.WeightedEnsemble)
    assert not ensemble.training
    assert f"sigma{ensemble.sigma:.2f}" in name
    assert name.startswith(f"{ensemble.dataset}-sween{len(ensemble.members)}-")
    image = torch.rand(ensemble.image_shape)
    smoothed = sween.SmoothedClassifier(
        ensemble, sigma=ensemble.sigma, num_classes=ensemble.num_classes
    )
    answer = smoothed.predict_one(image, n=20, alpha=0.1)
    assert sum(answer.counts) == 20


def test_the_digits_model_reproduces_its_certificates() -> None:
    name = "digits-sween3-gaussian-sigma0.50"
    ensemble, digits = sween.load(name), load_dataset("digits")
    smoothed = sween.SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
    picks = [3, 200]
    answers = smoothed.certify(digits.test.images(picks), n=10_000, seed=0, indices=picks)
    shipped = {
        row.index: row
        for row in read_certificates(ROOT / "results" / "digits-demo")
        if row.model == "SWEEN-3"
    }
    for answer in answers:
        # Rounding on another machine may change a vote or two.
        wanted = shipped[answer.index]
        pairs = zip(answer.estimation_counts, wanted.estimation_counts, strict=True)
        assert sum(abs(a - b) for a, b in pairs) <= 20
        assert answer.candidate == wanted.candidate


def test_a_member_of_several_models_is_stored_once(tmp_path: Path) -> None:
    """Whoever packs the model that borrows it gets a complete archive."""
    name, lender = "cifar10-sween6-gaussian-sigma0.50", "cifar10-sween3-gaussian-sigma0.50"
    own = {file.stem for file in (MODELS / name / "members").iterdir()}
    assert own == {"resnet50", "resnet80", "resnet110"}
    pack({"six": name}, tmp_path / "models.zip")
    with zipfile.ZipFile(tmp_path / "models.zip") as archive:
        packed = {Path(file).stem: archive.read(file) for file in archive.namelist()}
    assert {*sween.load(name).member_names} <= packed.keys()
    lent = (MODELS / lender / "members" / "resnet20.safetensors").read_bytes()
    assert packed["resnet20"] == lent


@pytest.mark.parametrize(
    ("elsewhere", "said"),
    [
        ("../outside", "expected the name of a neighbouring folder"),
        ("..", "expected the name of a neighbouring folder"),
        ("missing", r"member digits-mlp: expected its checkpoint in members/ or .*missing/members"),
    ],
)
def test_members_are_borrowed_from_neighbours_alone(
    tmp_path: Path, elsewhere: str, said: str
) -> None:
    zoo, name = tmp_path / "zoo", "digits-sween3-gaussian-sigma0.50"
    shutil.copytree(MODELS / name, zoo / "own")
    (tmp_path / "outside").mkdir()
    shutil.copytree(zoo / "own" / "members", tmp_path / "outside" / "members")
    shutil.move(zoo / "own" / "members", tmp_path / "members")
    config = zoo / "own" / "config.toml"
    config.write_text(f'borrows = "{elsewhere}"\n' + config.read_text("utf-8"), "utf-8")
    with pytest.raises(CheckpointError, match=said):
        sween.load(zoo / "own")


def test_a_model_that_borrows_loads_from_inside_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(MODELS / "cifar10-sween6-gaussian-sigma0.50")
    assert sween.load(".").member_names[0] == "resnet20"


def test_listing() -> None:
    said = succeed("zoo")
    assert all(name in said for name in NAMES)
    content = json.loads(succeed("zoo --json"))
    assert list(content) == NAMES
    for entry in content.values():
        assert sum(entry["members"].values()) == pytest.approx(1)


def test_a_folder_takes_precedence_over_a_zoo_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAMES[0]).mkdir()
    with pytest.raises(CheckpointError, match="neither"):
        load(NAMES[0])


def test_unknown_names_suggest_the_closest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'digits-sween3-gaussian"):
        sween.load("digits-sween3-gausian-sigma0.50")
    with pytest.raises(CheckpointError):
        sween.load(tmp_path / "nothing" / "here")


def test_images_of_another_shape_are_refused() -> None:
    """One channel would silently be broadcast to three."""
    ensemble = sween.load("cifar10-sween3-gaussian-sigma0.50")
    smoothed = sween.SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
    for shape in ((1, 32, 32), (3, 16, 16)):
        with pytest.raises(BadInput, match=r"expected shape \(3, 32, 32\)"):
            smoothed.certify(torch.rand(shape), n=100)
        with pytest.raises(BadInput, match=r"expected shape \(3, 32, 32\)"):
            smoothed.predict(torch.rand(shape), n=100)
