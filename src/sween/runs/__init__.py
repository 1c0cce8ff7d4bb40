"""Typed run folders: created, appended to, resumed, read and verified through these alone."""

from sween.runs.certification import CertificationConfig, CertificationRun, verify_folder

__all__ = ["CertificationConfig", "CertificationRun", "verify_folder"]
