"""Typed run folders: created, appended to, resumed, read, verified, merged by these alone."""

from sween.runs.attack import AttackConfig, AttackRun, verify_attacks
from sween.runs.certification import CertificationConfig, CertificationRun, verify_folder
from sween.runs.merge import MergedRun, merge_runs, shards_left
from sween.runs.shards import Shard
from sween.runs.training import TrainingConfig, TrainingRun

__all__ = [
    "AttackConfig",
    "AttackRun",
    "CertificationConfig",
    "CertificationRun",
    "MergedRun",
    "Shard",
    "TrainingConfig",
    "TrainingRun",
    "merge_runs",
    "shards_left",
    "verify_attacks",
    "verify_folder",
]
