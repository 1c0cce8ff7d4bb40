"""Typed run folders: created, appended to, resumed, read and verified through these alone."""

from sween.runs.attack import AttackConfig, AttackRun, verify_attacks
from sween.runs.certification import CertificationConfig, CertificationRun, verify_folder
from sween.runs.training import TrainingConfig, TrainingRun

__all__ = [
    "AttackConfig",
    "AttackRun",
    "CertificationConfig",
    "CertificationRun",
    "TrainingConfig",
    "TrainingRun",
    "verify_attacks",
    "verify_folder",
]
