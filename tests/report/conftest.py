"""Tables, figures and pages are tested on runs of hand-picked radii, which no votes give.

What a report asks of real folders is tested on real ones, in tests/cli/test_forged_runs.py.
"""

from pathlib import Path

import pytest

from sween.attack import AttackOutcome, outcomes_file
from sween.errors import RunMismatch
from sween.records import (
    CERTIFICATES,
    from_row,
    read_certificates,
    read_rows,
    require_rows_file,
    row_checksum,
)
from sween.runs import AttackConfig, AttackRun, CertificationConfig, CertificationRun


def read_run_by_its_checksums(folder: Path) -> CertificationRun:
    file = require_rows_file(folder, CERTIFICATES, verb="certify")
    config = CertificationConfig.read(folder)
    for number, row in enumerate(read_rows(file), start=1):
        if row.get("checksum") != row_checksum(row):
            where = f"{file}, line {number} (index {row.get('index')})"
            raise RunMismatch(where, "checksum", fix="sween verify says what differs")
    return CertificationRun(file, config, read_certificates(file))


def read_attack_by_its_checksums(folder: Path) -> AttackRun:
    file = outcomes_file(folder)
    assert file is not None
    rows = [from_row(AttackOutcome, row) for row in read_rows(file)]
    return AttackRun(file, AttackConfig.read(folder), rows)


@pytest.fixture(autouse=True)
def _votes_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CertificationRun, "read", read_run_by_its_checksums)
    monkeypatch.setattr(AttackRun, "read", read_attack_by_its_checksums)
