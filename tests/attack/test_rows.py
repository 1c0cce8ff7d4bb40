"""Rows of an attack: what they say, how they are read back, and which runs take them up."""

import dataclasses
import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest

from sween.attack import AttackOutcome, AttackSettings
from sween.errors import BadInput, CheckpointError, UnknownName
from sween.records import ABSTAIN, Certificate, from_row, to_row
from sween.runs import AttackRun
from sween.runs.attack_outcome import judge
from tests.attack.linear import dataset
from tests.attack.quick import QUICK, attack_lines
from tests.attack.quick import attack as _attack
from tests.attack.quick import certificates as _certificates


def test_outcomes() -> None:
    assert judge(3, 3, 3) == "robust"
    assert judge(3, 3, 4) == "broken"
    assert judge(3, 3, ABSTAIN) == "abstained"
    assert judge(3, 4, 4) == "wrong"
    assert judge(3, ABSTAIN, 4) == "declined"


def test_rows_are_read_back_strictly(tmp_path: Path) -> None:
    outcome = _attack(tmp_path / "rows", QUICK, range(2))[0]
    row = to_row(outcome)
    assert from_row(AttackOutcome, row) == outcome
    for change in ({"eps": "9"}, {"schema": 1}, {"more": 1}):
        with pytest.raises(BadInput):
            from_row(AttackOutcome, row | change)
    with pytest.raises(BadInput, match=r"attacks\.jsonl"):
        AttackRun.read(Path("nowhere"))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        AttackSettings(attack="rnad")
    for eps in ((), (0.0,), (-1.0,), (0.5, 0.25), (0.5, 0.5), (float("nan"),), (float("inf"),)):
        with pytest.raises(BadInput, match="eps"):
            AttackSettings(eps=eps)
    for option in ({"samples": 0}, {"steps": 0}, {"batch_size": 0}):
        with pytest.raises(BadInput, match="at least 1"):
            AttackSettings(**option)  # type: ignore[arg-type]


def test_a_run_is_not_taken_up_with_other_certificates(tmp_path: Path) -> None:
    model, certificates = _certificates(1.0)
    data, settings = dataset(model, 20, seed=1), dataclasses.replace(QUICK, eps=(0.1,))

    def attack(known: Mapping[int, Certificate] | None) -> None:
        attack_lines(tmp_path, model, data, settings, 4, certificates=known)

    attack(certificates)
    attack(certificates)
    for other in (None, _certificates(1.5)[1]):
        with pytest.raises(CheckpointError, match="certificates"):
            attack(other)


def test_packed_rows_are_not_attacked_again(tmp_path: Path) -> None:
    _attack(tmp_path / "out", QUICK, range(2))
    file = tmp_path / "out" / "attacks.jsonl"
    (tmp_path / "out" / "attacks.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    with pytest.raises(BadInput, match="gunzip"):
        _attack(tmp_path / "out", QUICK, range(2))
    assert len(AttackRun.read(tmp_path / "out").rows) == 4
