"""The paper's figures: radius-accuracy curves of ensembles with their candidates."""

from typing import TYPE_CHECKING

from sween.report.curves import Panel, draw_panels
from sween.reproduce.complete import complete_certifications
from sween.reproduce.plan import Ensemble
from sween.reproduce.workspace import Workspace
from sween.runs import CertificationRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_figures(space: Workspace) -> dict[str, "Figure"]:
    """The figures of a plan by file name without suffix, of the noise levels that are certified.

    Different candidates: for each noise level a plot for every ensemble (the paper's Figure 1).
    Candidates that differ in their seed alone: a plot for each noise level (its Figure 3).

    Example:
        See `carry_out`.
    """
    plan, runs = space.plan, complete_certifications(space)
    if plan.table != "certified" or not runs:
        return {}
    name = f"{plan.name}-{space.recipe}"
    if len({candidate.arch for candidate in plan.candidates}) == 1:
        return {name: draw_panels([_panel(sigma, run, plan.whole) for sigma, run in sorted(runs)])}
    return {
        f"{name}-sigma{sigma:.2f}": draw_panels(
            [_panel(sigma, run, ensemble) for ensemble in plan.ensembles]
        )
        for sigma, run in runs
    }


def _panel(sigma: float, run: CertificationRun, ensemble: Ensemble) -> Panel:
    settings = run.config.settings
    candidates = [name for name in ensemble.members if name in run.config.members]
    return Panel(
        {name: run.of(name) for name in (*candidates, ensemble.name)},
        title=f"{ensemble.name}, σ = {sigma:.2f}",
        subtitle=f"{len(run.config.indices):,} images, n = {settings.n:,}, α = {settings.alpha:g}",
        ensemble=ensemble.name,
        candidates=candidates,
    )
