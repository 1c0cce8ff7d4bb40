"""Runs for the page's tests, and how to read a page back."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sween.attack import AttackOutcome
from sween.data.dataset import Dataset, Split, StoredPixels
from sween.evaluation import by_model
from sween.records import ABSTAIN, Certificate
from sween.report.attacked import AttackedRun
from sween.report.measured import MeasuredRun
from sween.report.page import render_page
from sween.report.rows import build_rows
from sween.runs import AttackConfig, CertificationConfig
from tests.evaluation.certificates import certificate
from tests.report.folders import attack_config, attack_outcome, run_config

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
    **changes: Any,
) -> MeasuredRun:
    """A run as `load_run` gives it, without a folder, with changes to its config."""
    models = by_model(rows)
    if ensemble is not None:
        members = [model for model in models if model != ensemble]
        changes |= {"model": ensemble, "ensemble": ensemble, "members": members}
    config = CertificationConfig.of(run_config(rows, **changes))
    table = build_rows(rows, ensemble=ensemble, run=name)
    return MeasuredRun(name, config, models, table, {"commit": "0123abc", "gpu": None})


def random_rows(
    count: int, *, models: Sequence[str] = (*CANDIDATES, ENSEMBLE), first: int = 0, seed: int = 0
) -> list[Certificate]:
    """Correct, wrong and abstained predictions with votes and radii of every size."""
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


def toys(
    count: int, shape: tuple[int, int, int] = (3, 8, 8), *, classes: Sequence[str] = CLASSES
) -> Dataset:
    """A data set of noise, which does not compress: the largest PNGs there are."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    split = Split("test", StoredPixels(images), torch.zeros(count, dtype=torch.long))
    return Dataset("toys", tuple(classes), shape, (0.5,), (0.5,), "none", split, split, split)


def attack_with(outcomes: Sequence[AttackOutcome], name: str = "pgd") -> AttackedRun:
    """An attack as `load_attacked` gives it, without a folder."""
    config = AttackConfig.of(attack_config(outcomes, certificates="given"))
    return AttackedRun(name, config, outcomes, {})


def outcome_of(row: Certificate, outcome: str, eps: float = 0.5, **fields: Any) -> AttackOutcome:
    """An attack's outcome on the image of a certificate."""
    assert row.label is not None
    prediction = (row.label + 1) % len(CLASSES) if outcome == "broken" else row.label
    own = {"label": row.label, "clean_prediction": row.label, "prediction": prediction}
    return attack_outcome(row.index, eps, outcome, **{**own, "model": row.model, **fields})


def write_page(path: Path, *runs: MeasuredRun, **options: Any) -> Mapping[str, Any]:
    """Write a page, and read its content back."""
    path.write_text(render_page(runs, **options), encoding="utf-8")
    return read_page(path)[1]


def read_page(path: Path) -> tuple[str, Mapping[str, Any]]:
    """The page's text and what its JSON block holds."""
    text = path.read_text(encoding="utf-8")
    (block,) = re.findall(
        r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL
    )
    content: Mapping[str, Any] = json.loads(block)
    return text, content


def read_report(report: Path) -> Mapping[str, Any]:
    """The content of a report's page."""
    return read_page(report.with_name("report.html"))[1]
