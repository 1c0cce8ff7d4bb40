"""The pages of docs/reference are those that the code gives, and leave nothing out."""

import dataclasses
import importlib
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import sween
from sween.ensemble.folder import write_ensemble
from sween.ensemble.solve import WeightSolution
from sween.runs.attack import AttackConfig
from sween.runs.certification import CertificationConfig
from sween.runs.rows import SUBJECT_TYPES
from sween.runs.subject import SubjectConfig
from sween.runs.training import RECORDED_KEYS, TrainingConfig
from sween.zoo import MODELS

from .pages import ROOT

ZOO = sorted(MODELS.glob("digits*"))
TYPES: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    int | float: "number",
    list: "list",
    dict: "table",
}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def keys(thing: object) -> dict[str, str]:
    """The keys of config.toml that a docstring describes, with their types."""
    docstrings = imported("docstrings")
    section = docstrings.sections(thing.__doc__)["Keys of config.toml"]
    return {name: kind for name, kind, _ in docstrings.entries(section)}


@pytest.mark.parametrize("name", ["commands.md", "python.md", "packages.md", "rows.md"])
def test_pages_are_up_to_date(name: str) -> None:
    page = imported("update_reference").PAGES[name]
    shown = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert shown == page(), "run docs/update_reference.py"


def test_config_keys_have_the_types_that_readers_check() -> None:
    subject, certificates, attacks = map(keys, (SubjectConfig, CertificationConfig, AttackConfig))
    for described, types in (
        (subject, SUBJECT_TYPES),
        (subject | certificates, CertificationConfig.TYPES),
        (certificates, CertificationConfig.OPTIONAL),
        (subject | attacks, AttackConfig.TYPES),
    ):
        for name, kind in types.items():
            assert described[name].startswith(TYPES[kind]), name


def test_every_key_of_a_shipped_config_is_described() -> None:
    subject = keys(SubjectConfig)
    known = {
        "certificates": {**subject, **keys(CertificationConfig)},
        "attacks": {**subject, **keys(AttackConfig)},
    }
    configs = [tomllib.loads(path.read_text()) for path in ROOT.glob("results/**/config.toml")]
    kinds = [config for config in configs if config.get("kind") in known]
    assert {config["kind"] for config in kinds} == {*known}
    for config in kinds:
        assert {*config} <= {*known[config["kind"]]}


def test_every_key_of_a_fresh_config_is_described(tmp_path: Path) -> None:
    smoothed = sween.SmoothedClassifier.load(
        ZOO[0],
        member_names=["digits-mlp", "digits-conv", "digits-resnet"],
        weightings={"equal": [0.3, 0.3, 0.4]},
        other_exits=[sween.ExitPolicy("exact")],
    )
    digits = sween.load_dataset("digits")
    sween.certify_dataset(smoothed, digits, out=tmp_path, indices=[0], n=100, quiet=True)
    content = tomllib.loads((tmp_path / "config.toml").read_text())
    assert {"members", "ensemble", "weightings", "exits"} < {*content}
    assert {*content} <= {*keys(SubjectConfig), *keys(CertificationConfig)}


def test_every_key_of_a_training_run_and_of_an_ensemble_is_described() -> None:
    assert {*keys(TrainingConfig)} == {*RECORDED_KEYS}
    solved = {field.name for field in dataclasses.fields(WeightSolution)}
    for folder in ZOO:
        content = tomllib.loads((folder / "config.toml").read_text())
        assert {*content} | {"borrows"} == {*keys(write_ensemble), *solved}


@pytest.mark.parametrize("name", ["Certificate", "AttackOutcome"])
def test_fields_that_may_be_null_say_when(name: str) -> None:
    rows = imported("reference_rows")
    for field, kind, meaning in rows._described(getattr(rows, name)):
        assert ("None" in meaning) == ("null" in kind), field
