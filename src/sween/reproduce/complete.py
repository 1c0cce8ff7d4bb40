"""Runs of a plan that have all their rows: tables and figures show no others.

Nor those of steps that are known not to be done (`Workspace.unfinished`): their rows may be those
of other networks, as after a change of the recipe.
"""

from pathlib import Path

from sween.reproduce.workspace import Workspace
from sween.runs import CertificationRun
from sween.runs.attack import AttackRun


def complete_certification(space: Workspace, folder: Path) -> CertificationRun | None:
    """The run in a folder, if it has all its rows."""
    if folder in space.unfinished or not (folder / "config.toml").is_file():
        return None
    run = CertificationRun.read(folder)
    return run if len(run.rows) == run.config.rows else None


def complete_attack(space: Workspace, folder: Path) -> AttackRun | None:
    """The attack in a folder, if it has all its rows."""
    if folder in space.unfinished or not (folder / "config.toml").is_file():
        return None
    run = AttackRun.read(folder)
    return run if len(run.rows) == run.config.rows else None


def complete_certifications(space: Workspace) -> list[tuple[float, CertificationRun]]:
    """Of a plan, with their noise levels."""
    found = (
        (sigma, complete_certification(space, space.certificates(sigma)))
        for sigma in space.plan.sigmas
    )
    return [(sigma, run) for sigma, run in found if run is not None]
