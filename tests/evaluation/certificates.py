"""Certificates for tests: every field filled, the ones a test is about given by name."""

import csv
from pathlib import Path
from typing import Any

from sween.records import ABSTAIN, Certificate

AUTHORS_LOGS = (
    Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "logs" / "sween-authors"
)
"""The paper's authors' published logs, beside the repository; tests skip where they are absent."""


def certificate(
    index: int = 0,
    radius: float = 0.5,
    *,
    label: int | None = 1,
    prediction: int = 1,
    **fields: Any,
) -> Certificate:
    """A certificate of a right answer with that radius, changed by the given fields."""
    candidate = 1 if prediction == ABSTAIN else prediction
    defaults: dict[str, Any] = {
        "radius_cohen": radius,
        "radius_two_class": radius,
        "candidate": candidate,
        "lower_bound": 0.9,
        "selection_counts": (5, 95),
        "estimation_counts": (10, 990),
        "n0": 100,
        "n": 1000,
        "alpha": 0.001,
        "sigma": 0.5,
        "bound": "cohen",
        "sampling": "fixed",
        "samples": 1100,
        "decisions": None,
        "exit": "none",
        "votes": "hard",
        "noise": "float32",
        "precision": "float32",
        "forward_rows": 100,
        "member_evaluations": 1100,
        "seconds": 0.1,
        "model": "net",
        "seed": 0,
    }
    return Certificate(
        index=index, label=label, prediction=prediction, radius=radius, **(defaults | fields)
    )


def wrong(index: int = 0, radius: float = 0.9, **fields: Any) -> Certificate:
    """A certificate of a confidently wrong answer."""
    return certificate(index, radius, label=1, prediction=0, **fields)


def abstained(index: int = 0, **fields: Any) -> Certificate:
    """An abstention under every bound, whose candidate class was right."""
    return certificate(index, 0.0, prediction=ABSTAIN, **fields)


def read_authors_log(name: str) -> list[Certificate]:
    """One of the authors' logs as certificates: their radii, sigma .50, n = 100,000."""
    with (AUTHORS_LOGS / f"{name}.tsv").open(encoding="utf-8", newline="") as stream:
        return [
            certificate(
                int(row["idx"]),
                float(row["radius"]),
                label=int(row["label"]),
                prediction=int(row["predict"]),
                n=100_000,
                model=name,
                radius_two_class=None,
            )
            for row in csv.DictReader(stream, delimiter="\t")
        ]
