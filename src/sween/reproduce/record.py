"""The tables of `sween reproduce record`: the largest ensemble next to every published figure."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sween.bounds.radius import radius_cohen
from sween.evaluation import (
    average_certified_radius,
    bootstrap_interval,
    certified_accuracy,
    counted_radii,
    pair_by_index,
    simultaneous_intervals,
)
from sween.records import Certificate, format_radius
from sween.report.log_comparison import compare_with_log
from sween.report.published_logs import largest_radius, read_tsv_log
from sween.report.rows import DEFAULT_RADII
from sween.report.tables import (
    Cell,
    Column,
    Table,
    make_table,
    plain_number,
    signed,
    whole_number,
)
from sween.reproduce.complete import complete_certification
from sween.reproduce.published import OURS, published_rows
from sween.reproduce.workspace import Workspace
from sween.runs import CertificationRun

LOGS = {"CAT-RS": "catrs", "Sun et al. 2025": "acr-weakness"}
"""Folders of public certification logs in `logs` of the data folder, by what they are called."""

_ENVELOPE = "record-envelope"
_SIGMA = Column("σ", "sigma", plain_number, setting=True)
_RECORD = (
    _SIGMA,
    Column("Model", "model"),
    Column("from", "source"),
    Column("images", "images"),
    Column("n", "n", whole_number),
    *(Column(f"{own:.2f}", f"accuracy_{own:.2f}", "{:.1f}".format) for own in DEFAULT_RADII),
    Column("ACR", "acr", format_radius),
    Column("our lead in ACR", "lead"),
)
_BEST = (
    Column("radius", "radius", "{:.2f}".format),
    _SIGMA,
    Column("certified accuracy", "accuracy", "{:.2f}".format),
    Column("95% interval", "interval"),
    Column("best published", "published", "{:.1f}".format),
    Column("by", "by"),
    Column("lead", "lead"),
)
_EDGES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
_PROBABILITIES = (
    _SIGMA,
    Column("Model", "model"),
    Column("images", "images"),
    Column("certified", "certified", "{:.1f}".format),
    *(
        Column(f"{low:g} to {high:g}", f"from_{low:g}", "{:.1f}".format)
        for low, high in itertools.pairwise(_EDGES)
    ),
)
_PAIRED = (
    _SIGMA,
    Column("Model", "model"),
    Column("log", "log"),
    Column("images", "images", whole_number),
    Column("ACR", "acr", format_radius),
    Column("ACR of the log", "log_acr"),
    Column("lead in ACR", "lead"),
    Column("larger on", "larger", whole_number),
    Column("smaller on", "smaller", whole_number),
)

_ABOUT = {
    "record": "Our lead is that of the ensemble over the row's ACR, with a 95% bootstrap interval "
    "over our images; if the row's images are others, it says little. Candidates and other weights "
    "come from a fixed pass.",
    "envelope": "The noise level of each radius was chosen on the weight-solving split. The "
    "intervals hold for all radii at once, over the choice of test images; a lead is over the "
    "largest published number at that radius at any noise level, whatever its images.",
    "probabilities": "Percent of images by the share of votes for their true class. Training for "
    "ACR gives up images whose share is small for larger shares of the others; `certified` is the "
    "certified accuracy at radius 0, which that costs.",
    "paired": "On the images that both have, pair by pair; radii in a log were rounded when "
    "printed, so its numbers are intervals. Leads with 95% paired bootstrap intervals.",
}


def record_tables(space: Workspace) -> list[Table]:
    """The ensemble next to published figures, its envelope, its probabilities, and public logs.

    Of the noise levels whose certificates are complete; none before there is one.
    """
    runs = {sigma: run for sigma in space.plan.sigmas if (run := _run(space, sigma)) is not None}
    if not runs:
        return []
    name, recipe = space.plan.name, space.recipe
    tables = [
        _table(name, f"{space.plan.title} ({recipe})", _RECORD, _rows(space, runs), "record"),
        _table(
            f"{name}-envelope",
            f"{space.plan.whole.name}: the best noise level for each radius ({recipe})",
            _BEST,
            _envelope(space, runs),
            "envelope",
        ),
        _table(
            f"{name}-probabilities",
            f"{space.plan.whole.name}: how sure it is of the true class ({recipe})",
            _PROBABILITIES,
            _probabilities(space, runs),
            "probabilities",
        ),
    ]
    if paired := list(_paired(space, runs)):
        title = f"{space.plan.whole.name} compared with public logs ({recipe})"
        tables.append(_table(f"{name}-logs", title, _PAIRED, paired, "paired"))
    return tables


def _table(
    name: str,
    title: str,
    columns: Sequence[Column],
    records: Iterator[dict[str, Any]] | list[dict[str, Any]],
    about: str,
) -> Table:
    empty = dict.fromkeys(column.field for column in columns)
    rows = [empty | record for record in records]
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    blocks = [0 if about == "envelope" else sigmas.index(row["sigma"]) for row in rows]
    return make_table(name, title, columns, rows, blocks=blocks, notes=[_ABOUT[about]])


def _run(space: Workspace, sigma: float, *, held_out: bool = False) -> CertificationRun | None:
    return complete_certification(space, space.record(sigma, held_out=held_out))


def _rows(space: Workspace, runs: Mapping[float, CertificationRun]) -> Iterator[dict[str, Any]]:
    """Published rows, then the ensemble, then what the fixed pass has."""
    whole = space.plan.whole.name
    for sigma, run in runs.items():
        radii = counted_radii(run.of(whole)).radii
        for row in published_rows(space.plan.published, sigma):
            shares = zip(DEFAULT_RADII, row.get("accuracies", ()), strict=False)
            low, high = bootstrap_interval(
                radii - row["acr"], resamples=10_000, confidence=0.95, seed=0
            )
            yield {
                **{key: row[key] for key in ("sigma", "model", "source", "images", "acr")},
                "n": 100_000,
                **{f"accuracy_{radius:.2f}": share for radius, share in shares},
                "lead": _interval(float(radii.mean()) - row["acr"], low, high),
            }
        yield _measured(sigma, run, whole)
        fixed = complete_certification(space, space.certificates(sigma))
        for voter in () if fixed is None else fixed.config.voters:
            assert fixed is not None
            yield _measured(sigma, fixed, voter)


def _measured(sigma: float, run: CertificationRun, voter: str) -> dict[str, Any]:
    rows = run.of(voter)
    return {
        "sigma": sigma,
        "model": voter,
        "source": OURS,
        "images": _images(run),
        "n": run.config.settings.n,
        **{
            f"accuracy_{radius:.2f}": 100 * float(share)
            for radius, share in zip(
                DEFAULT_RADII, certified_accuracy(rows, DEFAULT_RADII), strict=True
            )
        },
        "acr": average_certified_radius(rows),
    }


def _images(run: CertificationRun) -> str:
    """Which images a run is about, as published rows say it."""
    indices = list(run.config.indices)
    together = indices == list(range(indices[0], indices[-1] + 1))
    return f"{indices[0]}:{indices[-1] + 1}" if together else f"{len(indices):,} images"


def _envelope(space: Workspace, runs: Mapping[float, CertificationRun]) -> Iterator[dict[str, Any]]:
    """For each radius the noise level that is best on the weight-solving split, on test images."""
    whole, chosen = space.plan.whole.name, dict[float, float]()
    held_out = {sigma: _run(space, sigma, held_out=True) for sigma in runs}
    assert space.plan.record is not None
    n = space.plan.record.n
    shares = {
        sigma: expected_accuracy(run.of(whole), sigma=sigma, n=n)
        for sigma, run in held_out.items()
        if run is not None
    }
    for place, radius in enumerate(DEFAULT_RADII if shares else ()):
        # The larger one of two that certify nothing: its radii reach farther.
        chosen[radius] = max(shares, key=lambda sigma: (shares[sigma][place], sigma))
    if not chosen:
        return
    columns = _aligned({sigma: runs[sigma].of(whole) for sigma in dict.fromkeys(chosen.values())})
    values = np.stack([columns[sigma] >= radius for radius, sigma in chosen.items()], axis=1)
    low, high = (
        ends.clip(0, 100) for ends in simultaneous_intervals(100 * values.astype(np.float64))
    )
    images = _images(runs[next(iter(chosen.values()))])
    for place, (radius, sigma) in enumerate(chosen.items()):
        accuracy, ends = 100 * float(values[:, place].mean()), (low[place], high[place])
        best, by = _best_published(space, radius, images)
        yield {
            "radius": radius,
            "sigma": sigma,
            "accuracy": accuracy,
            "interval": f"{ends[0]:.2f} to {ends[1]:.2f}",
            "published": best if by else None,
            "by": by or None,
            "lead": _interval(accuracy - best, ends[0] - best, ends[1] - best) if by else None,
        }


def expected_accuracy(rows: Sequence[Certificate], *, sigma: float, n: int) -> list[float]:
    """Certified accuracy at each radius if `n` votes had the shares of the rows' fewer ones.

    By the rows' own bounds no radius reaches as far as n votes can, so that a noise level would
    lose the radii next to its largest to a larger one. No certificate comes from this.
    """
    votes = np.array([round(_true_share(row) * n) for row in rows])
    radii = np.asarray(radius_cohen(votes, n, alpha=rows[0].alpha, sigma=sigma))
    return [float(((radii > 0) & (radii >= radius)).mean()) for radius in DEFAULT_RADII]


def _probabilities(
    space: Workspace, runs: Mapping[float, CertificationRun]
) -> Iterator[dict[str, Any]]:
    """How the votes for the true class are distributed over images, also of candidates."""
    for sigma, run in runs.items():
        fixed = complete_certification(space, space.certificates(sigma))
        voters = [(run, space.plan.whole.name)]
        voters += [(fixed, name) for name in fixed.config.members] if fixed is not None else []
        for own, name in voters:
            rows = own.of(name)
            shares = [_true_share(row) for row in rows]
            counts, _ = np.histogram(shares, bins=_EDGES)
            yield {
                "sigma": sigma,
                "model": name,
                "images": _images(own),
                "certified": 100 * float(certified_accuracy(rows, [0.0])[0]),
                **{
                    f"from_{low:g}": 100 * int(count) / len(rows)
                    for low, count in zip(_EDGES, counts, strict=False)
                },
            }


def _true_share(row: Certificate) -> float:
    """The share of the fresh votes that are for the true class."""
    assert row.label is not None  # data sets of plans have labels
    return row.estimation_counts[row.label] / sum(row.estimation_counts)


def _aligned(models: Mapping[float, Sequence[Certificate]]) -> dict[float, np.ndarray]:
    """The radii of each, image by image; -1 where wrong or abstained, which counts at no radius."""
    first, *_ = models.values()
    found = {}
    for sigma, rows in models.items():
        _, own = pair_by_index(first, rows)
        counted = counted_radii(own)
        found[sigma] = np.where(counted.certified, counted.radii, -1.0)
    return found


def _best_published(space: Workspace, radius: float, images: str) -> tuple[float, str]:
    """The largest published accuracy at a radius, at any noise level, and whose it is.

    A model whose log allows it is compared on our images alone.
    """
    best, by = -math.inf, ""
    if space.plan.published is None:
        return best, by
    rows = [
        row for sigma in (0.25, 0.5, 1.0) for row in published_rows(space.plan.published, sigma)
    ]
    for row in [*rows, *published_rows(_ENVELOPE, 0.0)]:
        if ":" in row["images"] and row["images"] != images:
            continue
        shares = dict(zip(row.get("radii", DEFAULT_RADII), row.get("accuracies", ()), strict=False))
        if shares.get(radius, -math.inf) > best:
            best, by = shares[radius], f"{row['model']}, {row['images']}"
    return best, by


def _paired(space: Workspace, runs: Mapping[float, CertificationRun]) -> Iterator[dict[str, Any]]:
    """The ensemble and public logs on the same images, where the data folder has such logs."""
    whole = space.plan.whole.name
    for sigma, run in runs.items():
        for name, folder in LOGS.items():
            file = f"{space.plan.dataset}_resnet110_sigma_{sigma}.tsv"
            path = Path(space.data_root or ".") / "logs" / folder / file
            if not path.is_file():
                continue
            limit = largest_radius(sigma=sigma, n=100_000, alpha=0.001)
            log = read_tsv_log(path, significant_digits=3, limit=limit)
            one = compare_with_log(run.of(whole), log, common_only=True)
            low, high = one.difference
            larger, smaller = one.larger
            yield {
                "sigma": sigma,
                "model": whole,
                "log": name,
                "images": len(one.model.indices),
                "acr": one.model.acr.low,
                "log_acr": f"{one.log.acr.low:.3f} to {one.log.acr.high:.3f}",
                "lead": _interval((low + high) / 2, *one.bootstrap),
                "larger": larger,
                "smaller": smaller,
            }


def _interval(middle: float, low: float, high: float) -> Cell:
    return Cell(f"{signed(middle)} [{signed(low)}, {signed(high)}]", middle)
