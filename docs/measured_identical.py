"""The tables of networks that share an architecture: results/DATASET-identical-*."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from measured_findings import load, published, signed
from tables import markdown

from sween.evaluation import (
    average_certified_radius,
    bootstrap_over_envelope,
    certified_accuracy,
    paired_bootstrap,
)
from sween.records import Certificate, format_radius
from sween.report import MeasuredRun
from sween.report.rows import Row

RADII = (0.0, 0.5, 1.0, 1.5)
EQUAL = "-uniform"
"""Ends the name of an ensemble whose weights are equal."""


def _runs(results: Path, dataset: str) -> list[MeasuredRun]:
    return [load(folder) for folder in sorted(results.glob(f"{dataset}-identical-*"))]


def _ensembles(run: MeasuredRun) -> list[tuple[int, str]]:
    """Number of networks and name of each ensemble with solved weights, the smallest first."""
    weights = run.config.weights
    names = [name.removesuffix(EQUAL) for name in weights if name.endswith(EQUAL)]
    return sorted((sum(share > 0 for share in weights[f"{name}{EQUAL}"]), name) for name in names)


def whole_ensembles(results: Path, dataset: str) -> Iterator[tuple[float, str, Row, float]]:
    """Sigma, images, our row and the paper's ACR of all networks together."""
    for run in _runs(results, dataset):
        (own,) = (row for row in run.rows if row.kind == "ensemble" and row.model == run.ensemble)
        (paper,) = (
            row["acr"]
            for row in published()["identical"]
            if (row["sigma"], row["model"]) == (own.sigma, "SWEEN")
        )
        yield own.sigma, f"{run.indices[0]}:{run.indices[-1] + 1}", own, paper


def _line(rows: Sequence[Certificate]) -> list[str]:
    accuracies = [f"{100 * share:.1f}" for share in certified_accuracy(rows, RADII)]
    return [*accuracies, format_radius(average_certified_radius(rows))]


def identical(results: Path, dataset: str) -> str:
    """The first networks of a run together, next to the paper's rows."""
    lines: list[list[str]] = []
    for run in _runs(results, dataset):
        sigma = f"{run.sample.sigma:.2f}"
        lines += _published(run.sample.sigma)
        alone = zip(*(_line(run.models[name]) for name in run.candidates), strict=True)
        spread = [f"{min(own, key=float)} to {max(own, key=float)}" for own in alone]
        lines.append([sigma, "ours: one network", "-", *spread, "-"])
        for count, name in _ensembles(run):
            members = [run.models[candidate] for candidate in run.candidates[:count]]
            for method, own in (("sgd", name), ("equal", f"{name}{EQUAL}")):
                rows = run.models[own]
                lead = signed(bootstrap_over_envelope(rows, members))
                lines.append([sigma, f"ours: the first {count}", method, *_line(rows), lead])
    head = ["σ", "model", "weights", *(f"{radius:.2f}" for radius in RADII), "ACR"]
    return markdown([*head, "lead over the envelope"], 3, lines)


def _published(sigma: float) -> Iterator[list[str]]:
    for row in published()["identical"]:
        if row["sigma"] == sigma:
            shares = [f"{row['accuracies'][round(4 * radius)]:.1f}" for radius in RADII]
            model = {"AVG": "mean of 8", "UE": "best of 8", "SWEEN": "SWEEN-8"}[row["model"]]
            weights = "sgd" if row["model"] == "SWEEN" else "-"
            yield [f"{sigma:.2f}", f"paper: {model}", weights, *shares, f"{row['acr']:.3f}", "-"]


def diversity(results: Path, dataset: str) -> str:
    """What members of other noise or other depths are worth, on the same images."""
    lines = []
    for run in _runs(results, dataset):
        sigma = run.sample.sigma
        whole = str(run.ensemble)
        pairs = [
            ("seeds 0, 1, 2 (one with more noise)", f"first 3{EQUAL}", "seeds 0, 1, 4", "first 5"),
            ("all eight, equal weights", f"{whole}{EQUAL}", "all eight by sgd", whole),
        ]
        compared = [
            (name, run.models[own], other, run.models[model]) for name, own, other, model in pairs
        ]
        for size in (3, 6):
            other = load(results / f"{dataset}-sween{size}-gaussian-sigma{sigma:.2f}")
            assert other.ensemble is not None
            theirs = other.models[other.ensemble]
            for name, own in (("sgd", whole), ("equal weights", f"{whole}{EQUAL}")):
                compared.append((f"all eight, {name}", run.models[own], other.ensemble, theirs))
        for name, first, against, second in compared:
            difference = paired_bootstrap(first, second)
            acrs = [format_radius(difference.first), format_radius(difference.second)]
            lines.append([f"{sigma:.2f}", name, against, *acrs, signed(difference)])
    head = ["σ", "ResNet-110", "against", "ACR", "of the other", "difference"]
    return markdown(head, 3, lines)
