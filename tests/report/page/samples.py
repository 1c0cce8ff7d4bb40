"""Runs for the page's tests, and how to read a page back."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sween.attack import AttackOutcome
from sween.records import ABSTAIN, Certificate
from sween.report.measured import MeasuredRun
from sween.report.page import PageRun
from sween.report.rows import build_rows, model_kinds
from tests.evaluation.certificates import certificate

CLASSES = ("plane", "car", "bird", "cat", "deer")
CANDIDATES = ("ant", "bee")
ENSEMBLE = "SWEEN-2"
VOTES = 1000

HOSTILE = "<img src=x onerror=alert(1)>"
"""What a stranger may call a class: markup that runs a script where a page inserts it as such."""


def measured(
    rows: Sequence[Certificate],
    *,
    name: str = "run-a",
    ensemble: str | None = ENSEMBLE,
    **more: Any,
) -> MeasuredRun:
    """A run as `load_run` gives it, without a folder."""
    models: dict[str, list[Certificate]] = {}
    for row in rows:
        models.setdefault(row.model, []).append(row)
    fields: dict[str, Any] = {"environment": {"commit": "0123abc", "gpu": None}} | more
    return MeasuredRun(
        name=name,
        dataset="toys",
        models=models,
        kinds=model_kinds(models, ensemble=ensemble, members=None),
        ensemble=ensemble,
        rows=build_rows(rows, ensemble=ensemble, run=name),
        **fields,
    )


def random_rows(
    count: int, *, models: Sequence[str] = (*CANDIDATES, ENSEMBLE), first: int = 0, seed: int = 0
) -> list[Certificate]:
    """Right, wrong and abstained answers with votes and radii of every size."""
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(first, first + count):
        label = int(generator.integers(len(CLASSES)))
        for model in models:
            votes = generator.multinomial(VOTES, generator.dirichlet(np.full(len(CLASSES), 0.4)))
            candidate = label if generator.random() < 0.7 else int(votes.argmax())
            radius = float(generator.exponential(0.6))
            gone = bool(generator.random() < 0.15)
            rows.append(
                certificate(
                    index,
                    0.0 if gone else radius,
                    label=label,
                    prediction=ABSTAIN if gone else candidate,
                    candidate=candidate,
                    radius_two_class=radius * 1.1,
                    estimation_counts=tuple(votes.tolist()),
                    model=model,
                    samples=1100,
                    member_evaluations=2200 if model == ENSEMBLE else 1100,
                )
            )
    return rows


def noise_images(indices: Sequence[int], shape: tuple[int, int, int] = (3, 32, 32)) -> Any:
    """Images that do not compress: the largest PNGs there are."""
    generator = torch.Generator().manual_seed(0)
    return {
        index: torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        for index in indices
    }


def page_run(run: MeasuredRun, **fields: Any) -> PageRun:
    defaults: dict[str, Any] = {
        "images": noise_images(run.indices, (3, 8, 8)),
        "class_names": CLASSES,
        "config": {"sigma": 0.5, "weightings": {"convex": [0.25, 0.75]}},
    }
    return PageRun(run=run, **(defaults | fields))


def attacked(row: Certificate, outcome: str, **fields: Any) -> AttackOutcome:
    """An attack's outcome on the image of a certificate."""
    assert row.label is not None
    defaults: dict[str, Any] = {
        "attack": "pgd",
        "eps": 0.5,
        "clean_prediction": row.label,
        "prediction": (row.label + 1) % len(CLASSES) if outcome == "broken" else row.label,
        "counts": row.estimation_counts,
        "distance": 0.5,
        "n": 1000,
        "alpha": 0.001,
        "tries": 1,
        "judge_alpha": 0.001,
        "judge_seed": 0,
        "samples": 8,
        "gradients": "plain",
        "surrogate_rows": 4096,
        "steps": 5,
        "sigma": row.sigma,
        "seed": 0,
        "model": row.model,
    }
    return AttackOutcome(index=row.index, label=row.label, outcome=outcome, **(defaults | fields))


def read_page(path: Path) -> tuple[str, Mapping[str, Any]]:
    """The page's text and what its JSON block holds."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(
        r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL
    )
    assert len(blocks) == 1
    content: Mapping[str, Any] = json.loads(blocks[0])
    return text, content
