"""Tables, figures and pages are tested on runs of hand-picked radii, which no votes give.

What a report asks of real folders is tested on real ones, in tests/cli/test_forged_runs.py.
"""

from pathlib import Path

import pytest

from sween.attack import outcomes_file, read_outcomes
from sween.errors import RunMismatch
from sween.records import read_certificates, read_rows, records_file, row_checksum
from sween.runs import AttackConfig, AttackRun, CertificationConfig, CertificationRun


def read_run_by_its_checksums(folder: Path) -> CertificationRun:
    config, file = CertificationConfig.read(folder), records_file(folder)
    for number, row in enumerate(read_rows(file), start=1):
        if row.get("checksum") != row_checksum(row):
            where = f"{file}, line {number} (index {row.get('index')})"
            raise RunMismatch(where, "checksum", fix="sween verify says what differs")
    return CertificationRun(file, config, read_certificates(file))


def read_attack_by_its_checksums(folder: Path) -> AttackRun:
    file = outcomes_file(folder)
    assert file is not None
    return AttackRun(file, AttackConfig.read(folder), read_outcomes(folder))


@pytest.fixture(autouse=True)
def _votes_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CertificationRun, "read", read_run_by_its_checksums)
    monkeypatch.setattr(AttackRun, "read", read_attack_by_its_checksums)
