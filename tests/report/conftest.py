"""Tables, figures and pages are tested on runs of hand-picked radii, which no votes give.

What a report asks of real folders is tested on real ones, in tests/cli/test_forged_runs.py.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest

from sween.attack import AttackOutcome, outcomes_file
from sween.errors import RunMismatch
from sween.records import from_row, read_certificates, read_rows, row_checksum, rows_file
from sween.run_folder import read_config
from sween.runs import CertificationRun
from sween.runs.attack import AttackRun


def read_run_by_its_checksums(folder: Path) -> SimpleNamespace:
    config, file = read_config(folder), rows_file(folder, "certificates.jsonl")
    assert file is not None
    for number, row in enumerate(read_rows(file), start=1):
        if row.get("checksum") != row_checksum(row):
            where = f"{file}, line {number} (index {row.get('index')})"
            raise RunMismatch(where, "checksum", fix="sween verify says what differs")
    return SimpleNamespace(config=SimpleNamespace(content=config), rows=read_certificates(file))


def read_attack_by_its_checksums(folder: Path) -> SimpleNamespace:
    file = outcomes_file(folder)
    assert file is not None
    config = SimpleNamespace(content=read_config(folder))
    rows = [from_row(AttackOutcome, row) for row in read_rows(file)]
    return SimpleNamespace(config=config, rows=rows)


@pytest.fixture(autouse=True)
def _votes_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CertificationRun, "read", read_run_by_its_checksums)
    monkeypatch.setattr(AttackRun, "read", read_attack_by_its_checksums)
