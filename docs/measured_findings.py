"""The tables of docs/results.md that docs/findings.md draws on, from results/ alone."""

import functools
import statistics
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import markdown, runs

from sween.evaluation import (
    PairedInterval,
    average_certified_radius,
    bootstrap_interval,
    bootstrap_over_envelope,
    counted_radii,
    paired_bootstrap,
)
from sween.records import Certificate, format_radius
from sween.report import MeasuredRun, load_run
from sween.runs import TrainingRun
from sween.training import OBJECTIVES

PUBLISHED = Path(__file__).parents[1] / "configs" / "published" / "paper.toml"

load = functools.cache(load_run)
"""Several tables are of the same runs."""


@functools.cache
def lead_over_envelope(folder: Path) -> PairedInterval:
    """Of a run's ensemble over its candidates."""
    run = load(folder)
    assert run.ensemble is not None
    return bootstrap_over_envelope(
        run.models[run.ensemble], [run.models[name] for name in run.candidates]
    )


def lead_over_best(run: MeasuredRun) -> PairedInterval:
    """Of a run's ensemble over the candidate with the largest ACR, as the paper's gains are."""
    best = max(run.candidates, key=lambda name: average_certified_radius(run.models[name]))
    return paired_bootstrap(ensemble_rows(run), run.models[best])


@functools.cache
def published() -> dict[str, list[dict[str, Any]]]:
    """The numbers that the paper prints."""
    return tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))


def signed(interval: PairedInterval, digits: int = 3) -> str:
    """A difference with its interval."""
    values = (interval.difference, interval.low, interval.high)
    # Adding 0.0 to what is rounded turns -0.0 into 0.0.
    one, low, high = (f"{round(value, digits) + 0.0:+.{digits}f}" for value in values)
    return f"{one} [{low}, {high}]"


def _gaussian(results: Path, dataset: str) -> list[tuple[MeasuredRun, float]]:
    return [
        (load(folder), sigma)
        for folder, training, sigma in runs(results, dataset)
        if training == "gaussian"
    ]


def ensemble_rows(run: MeasuredRun) -> Sequence[Certificate]:
    """Of the run's ensemble, without an exit."""
    assert run.ensemble is not None
    return run.models[run.ensemble]


def by_method(run: MeasuredRun, method: str) -> Sequence[Certificate]:
    """The ensemble with the weights of another method, which `reproduce` names after both."""
    return run.models[method if method in run.models else f"{run.ensemble}-{method}"]


def gains(results: Path, dataset: str) -> str:
    """What averaging adds to the best candidate, in the paper and here."""
    lines = []
    for run, sigma in _gaussian(results, dataset):
        members = len(run.candidates)
        known = {
            row["model"]: row["acr"] for row in published()["standard"] if row["sigma"] == sigma
        }
        paper, theirs = known[f"SWEEN-{members}"], known[f"UE-{members}"]
        ours, lead = ensemble_rows(run), lead_over_best(run)
        low, high = bootstrap_interval(
            counted_radii(ours).radii, resamples=10_000, confidence=0.95, seed=0
        )
        who = [f"SWEEN-{members}", f"{sigma:.2f}"]
        cells = [f"{theirs:.3f}", f"{paper:.3f}", f"{paper - theirs:+.3f}"]
        own = f"{format_radius(lead.first)} [{low:.3f}, {high:.3f}]"
        share = f"{100 * lead.difference / (paper - theirs):.0f}%"
        lines.append([*who, *cells, format_radius(lead.second), own, signed(lead), share])
    head = ["model", "σ", "paper: best candidate", "paper: ensemble", "paper: gain"]
    head += ["ours: best candidate", "ours: ensemble", "ours: gain", "of the paper's"]
    return markdown(head, 1, lines)


def sizes(results: Path, dataset: str) -> str:
    """SWEEN-6 against SWEEN-3 on the same images."""
    found: dict[float, dict[int, MeasuredRun]] = {}
    for run, sigma in _gaussian(results, dataset):
        found.setdefault(sigma, {})[len(run.candidates)] = run
    lines = []
    for sigma, by_size in found.items():
        if len(by_size) < 2:
            continue
        known = {
            row["model"]: row["acr"] for row in published()["standard"] if row["sigma"] == sigma
        }
        small, large = (by_size[size] for size in sorted(by_size))
        lead = paired_bootstrap(ensemble_rows(large), ensemble_rows(small))
        lines.append([f"{sigma:.2f}", f"{known['SWEEN-6'] - known['SWEEN-3']:+.3f}", signed(lead)])
    return markdown(["σ", "paper: SWEEN-6 over SWEEN-3", "ours"], 0, lines)


def weights(results: Path, dataset: str) -> str:
    """Each member's weight by both solvers, and the difference in ACR that they make."""
    lines = []
    for run, sigma in _gaussian(results, dataset):
        for method in ("sgd", "convex"):
            own = ensemble_rows(run) if method == "sgd" else by_method(run, method)
            lead = "-" if method == "sgd" else signed(paired_bootstrap(own, ensemble_rows(run)))
            name = str(run.ensemble) if method == "sgd" else method
            shares = [f"{weight:.2f}" for weight in run.config.weights[name]]
            who = [str(run.ensemble), f"{sigma:.2f}", method, " ".join(shares)]
            lines.append([*who, format_radius(average_certified_radius(own)), lead])
    head = ["model", "σ", "weights by", "ResNet-20 26 32 (50 80 110)", "ACR"]
    return markdown([*head, "difference"], 4, lines)


def two_class_gain(run: MeasuredRun) -> PairedInterval:
    """What the two-class bound adds to the ACR of Cohen's, from the same votes."""
    own = ensemble_rows(run)
    cohen = counted_radii(own, radius="radius_cohen").radii
    two_class = counted_radii(own, radius="radius_two_class").radii
    low, high = bootstrap_interval(two_class - cohen, resamples=10_000, confidence=0.95, seed=0)
    return PairedInterval(
        first=float(two_class.mean()),
        second=float(cohen.mean()),
        difference=float((two_class - cohen).mean()),
        low=low,
        high=high,
        confidence=0.95,
        indices=tuple(row.index for row in own),
    )


def bounds(results: Path, dataset: str) -> str:
    """The two-class bound against Cohen's, from the same votes."""
    lines = [
        [str(run.ensemble), f"{sigma:.2f}", signed(two_class_gain(run))]
        for run, sigma in _gaussian(results, dataset)
    ]
    return markdown(["model", "σ", "gain in ACR"], 1, lines)


def training_time(folder: Path) -> tuple[int, float]:
    """Epochs, and seconds without those of compilation, of a run's candidates trained at once."""
    metrics = [TrainingRun.read(own).metrics for own in (folder / "training").iterdir()]
    epoch = max(statistics.median(row.seconds for row in own) for own in metrics)
    epochs = max(map(len, metrics))
    return epochs, epochs * epoch


def trainings(results: Path, name: str) -> str:
    """One ensemble, DATASET-sweenK at sigma 0.50, by every objective: what it takes and gives."""
    dataset, members = name.rsplit("-sween", 1)
    folders = {
        training: folder
        for folder, training, sigma in runs(results, dataset)
        if sigma == 0.5 and folder.name.startswith(f"{name}-")
    }
    best = max(
        (ensemble_rows(load(folder)) for folder in folders.values()), key=average_certified_radius
    )
    lines = []
    for training, folder in folders.items():
        run = load(folder)
        epochs, seconds = training_time(folder)
        alone = [average_certified_radius(run.models[one]) for one in run.candidates]
        ours = ensemble_rows(run)
        cells = [f"{OBJECTIVES[training].copies}", f"{epochs}", f"{seconds:.0f}"]
        cells += [" to ".join(map(format_radius, (min(alone), max(alone))))]
        cells += [format_radius(average_certified_radius(ours)), signed(lead_over_envelope(folder))]
        lines.append(
            [training, *cells, "-" if ours is best else signed(paired_bootstrap(ours, best))]
        )
    head = ["training", "copies", "epochs", "s", "ACR of one", f"SWEEN-{members}"]
    return markdown([*head, "lead over the envelope", "from the best"], 1, lines)
