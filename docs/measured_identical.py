"""The tables of networks that share an architecture.

Those of results/DATASET-identical-seeds-* differ in their seed alone; half of those of
results/DATASET-identical-* were trained with more noise, too.
"""

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


BY_SEED, BY_NOISE = "identical-seeds", "identical"
"""In the names of the folders."""


def eight(results: Path, dataset: str, kind: str, sigma: float = 0.5) -> MeasuredRun:
    """The run of eight networks that differ in their seed, or in their noise too."""
    return load(results / f"{dataset}-{kind}-gaussian-sigma{sigma:.2f}")


def _runs(results: Path, dataset: str, kind: str) -> list[MeasuredRun]:
    return [load(folder) for folder in sorted(results.glob(f"{dataset}-{kind}-gaussian-*"))]


def _ensembles(run: MeasuredRun) -> list[tuple[int, str]]:
    """Number of networks and name of each ensemble with solved weights, the smallest first."""
    weights = run.config.weights
    names = [name.removesuffix(EQUAL) for name in weights if name.endswith(EQUAL)]
    return sorted((sum(share > 0 for share in weights[f"{name}{EQUAL}"]), name) for name in names)


def whole_ensembles(results: Path, dataset: str) -> Iterator[tuple[float, str, Row, float]]:
    """Sigma, images, our row and the paper's ACR of all networks together."""
    for run in _runs(results, dataset, BY_SEED):
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
    """The first networks by seed together, next to the paper's rows."""
    lines: list[list[str]] = []
    for run in _runs(results, dataset, BY_SEED):
        lines += [*_published(run.sample.sigma), *_first_networks(run, "ours: ")]
    return _table(lines)


def identical_noise(results: Path, dataset: str) -> str:
    """The first networks by seed and noise together."""
    runs = _runs(results, dataset, BY_NOISE)
    return _table([line for run in runs for line in _first_networks(run, "")])


def _first_networks(run: MeasuredRun, ours: str) -> Iterator[list[str]]:
    """Lines of one network, and of the first of them together; `ours` precedes their names."""
    sigma = f"{run.sample.sigma:.2f}"
    alone = zip(*(_line(run.models[name]) for name in run.candidates), strict=True)
    spread = [f"{min(own, key=float)} to {max(own, key=float)}" for own in alone]
    yield [sigma, f"{ours}one network", "-", *spread, "-"]
    for count, name in _ensembles(run):
        members = [run.models[candidate] for candidate in run.candidates[:count]]
        for method, own in (("sgd", name), ("equal", f"{name}{EQUAL}")):
            rows = run.models[own]
            lead = signed(bootstrap_over_envelope(rows, members))
            yield [sigma, f"{ours}the first {count}", method, *_line(rows), lead]


def _table(lines: Sequence[Sequence[str]]) -> str:
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
    for run in _runs(results, dataset, BY_SEED):
        sigma, whole = run.sample.sigma, str(run.ensemble)
        noise = eight(results, dataset, BY_NOISE, sigma)
        compared = [
            ("three, one of them with more noise", noise.models[f"first 3{EQUAL}"],
             "three by seed", run.models[f"first 3{EQUAL}"]),
            ("eight, four of them with more noise", noise.models[f"{whole}{EQUAL}"],
             "eight by seed", run.models[f"{whole}{EQUAL}"]),
            ("eight, four of them with more noise", noise.models[f"{whole}{EQUAL}"],
             "the same by sgd", noise.models[whole]),
            ("eight by seed", run.models[f"{whole}{EQUAL}"],
             "the same by sgd", run.models[whole]),
        ]  # fmt: skip
        for size in (3, 6):
            other = load(results / f"{dataset}-sween{size}-gaussian-sigma{sigma:.2f}")
            assert other.ensemble is not None
            theirs = other.models[other.ensemble]
            for name, own in (
                ("eight by seed", run), ("eight, four of them with more noise", noise)
            ):  # fmt: skip
                compared.append((name, own.models[f"{whole}{EQUAL}"], other.ensemble, theirs))
        for name, first, against, second in compared:
            difference = paired_bootstrap(first, second)
            acrs = [format_radius(difference.first), format_radius(difference.second)]
            lines.append([f"{sigma:.2f}", name, against, *acrs, signed(difference)])
    head = ["σ", "ResNet-110, equal weights", "against", "ACR", "of the other", "difference"]
    return markdown(head, 3, lines)
