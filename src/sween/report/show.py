"""The page of a report: what it is told about each run."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sween.attack import AttackOutcome, contradicts
from sween.data.dataset import Dataset
from sween.report.attacked import AttackedRun, names_of
from sween.report.illustrate import attacks_on
from sween.report.measured import MeasuredRun
from sween.report.page import PageRun


def page_runs(
    runs: Sequence[MeasuredRun],
    attacked: Sequence[AttackedRun],
    datasets: Mapping[str, Dataset],
) -> list[PageRun]:
    """Each run with its images, where its data set is at hand, and the attacks on it."""
    return [_page_run(run, attacked, datasets.get(run.name)) for run in runs]


def others_made(
    runs: Sequence[MeasuredRun], attacked: Sequence[AttackedRun]
) -> dict[str, Mapping[str, Any]]:
    """How and where the attacks were made that are on no model of these runs."""
    shown = {own.name for run in runs for own in attacks_on(run, attacked)}
    return {
        f"Attack {own.name}": {**own.config, "environment": own.environment}
        for own in attacked
        if own.name not in shown
    }


def _page_run(
    run: MeasuredRun, attacked: Sequence[AttackedRun], dataset: Dataset | None
) -> PageRun:
    rows = [row for own in run.models.values() for row in own]
    classes = max(
        max(len(row.estimation_counts), (row.label or 0) + 1, row.prediction + 1) for row in rows
    )
    names = dataset.class_names if dataset is not None else [f"class {k}" for k in range(classes)]
    attacks = attacks_on(run, attacked)
    return PageRun(
        run=run,
        images=None if dataset is None else _images(dataset, run.indices),
        white=255 if dataset is None else dataset.test.white,
        class_names=names,
        attacks=_outcomes(run, attacks),
        config=run.config,
        attackers={
            f"Attack {own.name}": {**own.config, "environment": own.environment} for own in attacks
        },
    )


def _outcomes(run: MeasuredRun, attacked: Sequence[AttackedRun]) -> list[AttackOutcome]:
    """All outcomes, with an alarm where they contradict the run; each attack under its own name."""
    outcomes = []
    for name, own in zip(names_of(attacked), attacked, strict=True):
        known = {row.index: row for row in run.models[str(own.config["model"])]}
        outcomes += [
            dataclasses.replace(row, attack=name, alarm=contradicts(row, known.get(row.index)))
            for row in own.outcomes
        ]
    return outcomes


def _images(dataset: Dataset, indices: Sequence[int]) -> dict[int, torch.Tensor]:
    return dict(zip(indices, dataset.test.pixels.load(indices), strict=True))
