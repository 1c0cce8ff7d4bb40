"""The paper's figures: radius-accuracy curves of ensembles and candidates, by noise level."""

from typing import TYPE_CHECKING

from sween.report.curves import draw_curves
from sween.reproduce.steps import Workspace
from sween.reproduce.tables import complete_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_figures(space: Workspace) -> dict[str, "Figure"]:
    """A figure for every noise level that is certified, by file name without suffix."""
    plan, found = space.plan, dict[str, "Figure"]()
    if plan.table != "certified":
        return found
    for sigma, run in complete_runs(space):
        ensembles = [own.name for own in plan.ensembles]
        models = {name: run.of(name) for name in (*run.config.members, *ensembles)}
        found[f"{plan.name}-{space.recipe}-sigma{sigma:.2f}"] = draw_curves(
            models,
            title=plan.title,
            subtitle=f"sigma = {sigma:.2f}, {len(run.config.indices):,} test images, "
            f"n = {run.config.settings.n:,}, alpha = {run.config.settings.alpha:g}",
            ensemble=plan.whole.name,
            candidates=run.config.members,
        )
    return found
