"""Typed run folders: created, appended to, resumed, read and verified through these alone."""

from sween.runs.attack import AttackConfig, AttackRun, verify_attacks
from sween.runs.certification import CertificationConfig, CertificationRun, verify_folder

__all__ = [
    "AttackConfig",
    "AttackRun",
    "CertificationConfig",
    "CertificationRun",
    "verify_attacks",
    "verify_folder",
]
