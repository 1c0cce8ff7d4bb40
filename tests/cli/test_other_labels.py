"""Runs know which true classes they were judged by: others are refused, not mixed."""

import dataclasses
import shutil
import tomllib
from pathlib import Path

import pytest

from sween.data import Dataset, load_dataset
from sween.ensemble import load_ensemble
from sween.errors import BadInput, CheckpointError
from sween.report import write_report
from sween.run_folder import read_config
from sween.runs.attacked_certificates import differences
from sween.sampling import CertifySettings
from tests.certifying import certify_into
from tests.cli.command import assert_refused, succeed
from tests.cli.conftest import IMAGES, Made

ROOT = Path(__file__).resolve().parents[2]


def relabelled(dataset: Dataset) -> Dataset:
    """The same images, one of which is said to show another class."""
    labels = dataset.test.labels.clone()
    labels[-1] = (labels[-1] + 1) % dataset.num_classes
    return dataclasses.replace(dataset, test=dataclasses.replace(dataset.test, labels=labels))


def certify(made: Made, dataset: Dataset, out: Path) -> None:
    settings = CertifySettings(n=200)
    ensemble = load_ensemble(made.ensemble)
    certify_into(out, ensemble, dataset, list(range(IMAGES)), settings, members=True)


def test_the_pixels_of_shipped_runs_keep_their_fingerprint() -> None:
    config = tomllib.loads((ROOT / "results/digits-demo/config.toml").read_text())
    assert load_dataset("digits").test.pixels.fingerprint() == config["data"]


def test_a_run_is_not_resumed_with_other_labels(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(made.certificates, out)
    digits = load_dataset("digits")
    assert read_config(out)["labels"] == digits.test.label_fingerprint()
    certify(made, digits, out)
    with pytest.raises(CheckpointError, match=r"another config.*labels"):
        certify(made, relabelled(digits), out)


def test_a_folder_without_labels_in_its_config_is_not_resumed(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    certify(made, load_dataset("digits"), out)
    config = out / "config.toml"
    kept = [line for line in config.read_text().splitlines() if not line.startswith("labels")]
    config.write_text("\n".join(kept) + "\n")
    with pytest.raises(CheckpointError, match="labels None -> "):
        certify(made, load_dataset("digits"), out)


def test_an_attack_with_other_labels_than_the_certificates(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "known"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 200 --quiet --out {known}")
    line = (
        f"attack {made.ensemble} --eps 0.25 --attack pgd --samples 4 --steps 2 --n 200 "
        f"--indices 0:3 --quiet --certificates {known} --out {tmp_path}/out"
    )
    other = relabelled(load_dataset("digits"))
    monkeypatch.setattr("sween.cli.attack.dataset_of", lambda *_, **__: other)
    assert_refused(line, "certificates of the classifier", "labels '", watched=(tmp_path,))
    own = read_config(known)
    older = {name: value for name, value in own.items() if name != "labels"}
    assert differences(own, older) == differences(older, own) == []


def test_a_report_of_runs_with_other_labels(made: Made, tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    digits = load_dataset("digits")
    certify(made, digits, runs[0])
    certify(made, relabelled(digits), runs[1])
    with pytest.raises(BadInput, match="images of b: expected those of a"):
        write_report(runs, tmp_path / "report")
    with pytest.raises(BadInput, match="labels of digits: expected those that b certified"):
        write_report([runs[1]], tmp_path / "report")
