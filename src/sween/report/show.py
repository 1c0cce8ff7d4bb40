"""The page of a report: what it is told about each run."""

from collections.abc import Sequence

import torch

from sween.attack import AttackOutcome
from sween.data.dataset import Dataset
from sween.report.attacked import AttackedRun
from sween.report.illustrate import attacks_on
from sween.report.measured import MeasuredRun
from sween.report.page import PageRun


def page_runs(
    runs: Sequence[MeasuredRun], attacked: Sequence[AttackedRun], datasets: Sequence[Dataset]
) -> list[PageRun]:
    """Each run with its images, where the data set is at hand, and the attacks on it."""
    known = {dataset.name: dataset for dataset in datasets}
    return [_page_run(run, attacked, known.get(run.dataset)) for run in runs]


def _page_run(
    run: MeasuredRun, attacked: Sequence[AttackedRun], dataset: Dataset | None
) -> PageRun:
    rows = [row for own in run.models.values() for row in own]
    classes = max(
        max(len(row.estimation_counts), (row.label or 0) + 1, row.prediction + 1) for row in rows
    )
    names = dataset.class_names if dataset is not None else [f"class {k}" for k in range(classes)]
    return PageRun(
        run=run,
        images=None if dataset is None else _images(dataset, run.indices),
        white=255 if dataset is None else dataset.test.white,
        class_names=names,
        attacks=_outcomes(attacks_on(run, attacked)),
        config=run.config,
    )


def _outcomes(attacked: Sequence[AttackedRun]) -> list[AttackOutcome]:
    """All outcomes; of an attack that was run again, with another seed say, the worse one."""
    outcomes: dict[tuple[str, str, float, int], AttackOutcome] = {}
    for run in attacked:
        for outcome in run.outcomes:
            key = (outcome.model, outcome.attack, outcome.eps, outcome.index)
            if key not in outcomes or _severity(outcome) > _severity(outcomes[key]):
                outcomes[key] = outcome
    return list(outcomes.values())


def _severity(outcome: AttackOutcome) -> tuple[bool, bool]:
    return outcome.alarm, outcome.outcome == "broken"


def _images(dataset: Dataset, indices: Sequence[int]) -> dict[int, torch.Tensor]:
    return dict(zip(indices, dataset.test.pixels.load(indices), strict=True))
