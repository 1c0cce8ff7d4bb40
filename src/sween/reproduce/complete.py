"""Runs of a plan that have all their rows: tables and figures show no others."""

from pathlib import Path

from sween.reproduce.workspace import Workspace
from sween.runs import CertificationRun
from sween.runs.attack import AttackRun


def complete_certification(folder: Path) -> CertificationRun | None:
    """The run in a folder, if it has all its rows."""
    if not (folder / "config.toml").is_file():
        return None
    run = CertificationRun.read(folder)
    return run if len(run.rows) == run.config.rows else None


def complete_attack(folder: Path) -> AttackRun | None:
    """The attack in a folder, if it has all its rows."""
    if not (folder / "config.toml").is_file():
        return None
    run = AttackRun.read(folder)
    return run if len(run.rows) == run.config.rows else None


def complete_certifications(space: Workspace) -> list[tuple[float, CertificationRun]]:
    """Of a plan, with their noise levels."""
    found = (
        (sigma, complete_certification(space.certificates(sigma))) for sigma in space.plan.sigmas
    )
    return [(sigma, run) for sigma, run in found if run is not None]
