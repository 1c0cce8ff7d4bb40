"""The measured tables of README.md and docs/results.md, each built from results/ alone."""

import functools
import json
import re
import statistics
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sween.demo import RADII
from sween.evaluation import (
    PairedInterval,
    average_certified_radius,
    bootstrap_over_envelope,
    paired_bootstrap,
)
from sween.records import Certificate, format_radius, read_rows
from sween.report import MeasuredRun, load_run, to_markdown
from sween.report.rows import DEFAULT_RADII, Row

_RUN = re.compile(r"(?P<dataset>[a-z0-9]+)-sween\d+-(?P<training>[a-z]+)-sigma(?P<sigma>[0-9.]+)")


_load = functools.cache(functools.partial(load_run, radii=DEFAULT_RADII))
"""Several tables are of the same runs."""


def _markdown(head: Sequence[str], texts: int, rows: Sequence[Sequence[str]]) -> str:
    """A table whose first columns are text."""
    rule = [":---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"


def _runs(results: Path, dataset: str) -> list[tuple[Path, str, float]]:
    """The folders with their training and sigma: the paper's plain training first."""
    names = [_RUN.fullmatch(folder.name) for folder in results.glob(f"{dataset}-sween*")]
    runs = [(results / name[0], name["training"], float(name["sigma"])) for name in names if name]
    return sorted(runs, key=lambda run: (run[1] != "gaussian", run[1], run[2]))


def one_run(results: Path, name: str) -> str:
    """The table of one folder."""
    return to_markdown(load_run(results / name, radii=RADII).rows)


def beside_paper(results: Path, dataset: str) -> str:
    """Every run of results/ named DATASET-sweenK-TRAINING-sigmaS beside the published rows."""
    published = tomllib.loads((results / "published" / f"{dataset}.toml").read_text())["row"]
    head = ["training", "model", "σ", *(f"{radius:.2f}" for radius in DEFAULT_RADII), "ACR"]
    lines: list[list[str]] = []
    for folder, training, sigma in _runs(results, dataset):
        lines += [
            _published_line(row)
            for row in published
            if row["sigma"] == sigma and row["training"] == _counterpart(training)
        ]
        lines += [
            _measured_line(row, training)
            for row in _load(folder).rows
            if row.kind == "envelope" or (row.kind == "ensemble" and "+" not in row.model)
        ]
    return _markdown([*head, "two-class ACR"], 2, lines)


def _counterpart(training: str) -> str:
    """What the paper's rows are set against: its MACER rows, for objectives it does not have."""
    return "gaussian" if training == "gaussian" else "macer"


def _published_line(row: dict[str, Any]) -> list[str]:
    accuracies = [f"{value:.1f}" for value in row["accuracies"]]
    model = f"paper: {row['model']}"
    return [row["training"], model, f"{row['sigma']:.2f}", *accuracies, f"{row['acr']:.3f}", "-"]


def _measured_line(row: Row, training: str) -> list[str]:
    accuracies = [f"{100 * value:.1f}" for value in row.scores.accuracies]
    radii: Sequence[float | None] = (row.scores.acr, row.acr_two_class)
    cells = [
        training,
        f"ours: {row.model}",
        f"{row.sigma:.2f}",
        *accuracies,
        *("-" if radius is None else format_radius(radius) for radius in radii),
    ]
    return [f"**{cell}**" for cell in cells] if row.kind == "ensemble" else cells


def leads(results: Path, dataset: str) -> str:
    """Each ensemble's lead over the envelope of its candidates, and over the other weights."""
    lines, names = [], list[str]()
    for folder, training, sigma in _runs(results, dataset):
        run = _load(folder)
        assert run.ensemble is not None
        assert names in ([], run.candidates)  # one heading for all
        names = run.candidates
        own = run.models[run.ensemble]
        over = bootstrap_over_envelope(own, [run.models[name] for name in run.candidates])
        weights = paired_bootstrap(own, run.models["convex"])
        radii = [average_certified_radius(run.models[name]) for name in run.candidates]
        cells = [*map(format_radius, radii), format_radius(over.second), format_radius(over.first)]
        lines.append([training, f"{sigma:.2f}", *cells, _signed(over), _signed(weights)])
    head = ["training", "σ", *names, "envelope", "SWEEN-3"]
    return _markdown([*head, "lead", "lead over convex weights"], 1, lines)


def _signed(interval: PairedInterval) -> str:
    return f"{interval.difference:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def adaptive(results: Path, dataset: str) -> str:
    """What early exits save at each sigma, and what they cost."""
    lines = []
    for folder, training, sigma in _runs(results, dataset):
        run = _load(folder)
        for name, rows in run.models.items():
            if name == run.ensemble or (run.ensemble and name.startswith(f"{run.ensemble}+")):
                evaluations = sum(row.member_evaluations for row in rows) / len(rows)
                members = len(run.candidates) * sum(row.samples for row in rows) / len(rows)
                cells = [format_radius(average_certified_radius(rows)), f"{evaluations:,.0f}"]
                saved = f"{100 * (1 - evaluations / members):.0f}%"
                exit = rows[0].exit.split("(")[0]
                lines.append([training, exit, f"{sigma:.2f}", *cells, saved])
    order = {"none": 0, "paper": 1, "exact": 2}
    lines.sort(key=lambda line: (line[0] != "gaussian", line[2], order[line[1]]))
    head = ["training", "exit", "σ", "ACR", "evaluations an image", "saved"]
    return _markdown(head, 2, lines)


def sampling(results: Path, fixed: str) -> str:
    """Sampling modes beside the same ensemble with n samples for every image."""
    known = _load(results / fixed)
    assert known.ensemble is not None
    wanted = {row.index: row for row in known.models[known.ensemble]}
    lines = []
    for folder in sorted((results / "sampling").iterdir()):
        if (folder / "config.toml").is_file():
            lines.append(_sampling_line(_load(folder), wanted))
    head = ["sampling", "images", "samples an image", "of fixed", "s an image", "same decisions"]
    return _markdown([*head, "ACR of fixed"], 1, lines)


def _sampling_line(run: MeasuredRun, wanted: dict[int, Certificate]) -> list[str]:
    (rows,) = run.models.values()
    samples = sum(row.samples for row in rows) / len(rows)
    fixed = sum(row.samples for row in wanted.values()) / len(wanted)
    seconds = sum(row.seconds for row in rows) / len(rows)
    shared = [row for row in rows if row.index in wanted]
    cells = [f"{len(rows):,}", f"{samples:,.0f}", f"{100 * samples / fixed:.1f}%", f"{seconds:.4f}"]
    if rows[0].sampling == "decide":
        same = [f"{100 * _same(shared, wanted, radius):.1f}%" for radius in rows[0].decisions or ()]
        name = "decide " + ", ".join(rows[0].decisions or ())
        return [name, *cells, " / ".join(same), "-"]
    own = average_certified_radius(shared)
    ratio = own / average_certified_radius([wanted[row.index] for row in shared])
    return [_asked(run), *cells, "-", f"{100 * ratio:.1f}%"]


def _same(rows: Sequence[Certificate], wanted: dict[int, Certificate], radius: str) -> float:
    """The share of images certified at the radius either way, or neither."""
    same = [
        bool((row.decisions or {})[radius]) == (wanted[row.index].radius >= float(radius))
        for row in rows
    ]
    return sum(same) / len(same)


def _asked(run: MeasuredRun) -> str:
    if run.sample.sampling == "tolerance":
        return f"tolerance {run.config['tolerance']:g}"
    return f"{run.sample.sampling} {run.config.get('budget', ''):,}"


def speed(results: Path, name: str) -> str:
    """The rows of a file that `sween bench --out` wrote."""
    content = json.loads((results / "certification-speed" / f"{name}.json").read_text())
    lines = [
        [
            row["model"],
            row["exit"],
            row["precision"],
            f"{row['samples_per_second']:,.0f}",
            f"{row['reference_samples_per_second']:,.0f}",
            f"{row['ratio']:.1f}",
            f"{row['seconds_per_certificate']:.3f}",
        ]
        for row in content["results"]
    ]
    head = ["model", "exit", "arithmetic", "samples/s", "published loop", "ratio", "s an image"]
    return _markdown(head, 3, lines)


def training(results: Path, dataset: str) -> str:
    """How long the candidates of each run took, trained at once on one GPU."""
    lines = []
    for folder, name, sigma in _runs(results, dataset):
        files = sorted((folder / "training").glob("*/metrics.jsonl.gz"))
        seconds = [[row["seconds"] for row in read_rows(file)] for file in files]
        longest = max(seconds, key=sum)
        cells = [f"{len(seconds)}", f"{len(longest)}", f"{sum(longest):.0f}"]
        first = f"{max(own[0] for own in seconds):.0f}"
        lines.append([name, f"{sigma:.2f}", *cells, first, f"{statistics.median(longest):.2f}"])
    head = ["training", "σ", "candidates", "epochs", "s", "of which first epoch", "s an epoch"]
    return _markdown(head, 1, lines)


def training_speed(results: Path, name: str) -> str:
    """The rows of a file that benchmarks/training_speed.py wrote."""
    content = json.loads((results / "training-speed" / f"{name}.json").read_text())
    lines = [
        [
            row["arch"],
            row["compile"],
            f"{row['epoch']:.3f}",
            f"{row['plain_epoch']:.3f}",
            f"{row['ratio']:.1f}",
            f"{row['first_epoch']:.0f}",
        ]
        for row in content["rows"]
    ]
    head = ["network", "compiled", "s an epoch", "plain loop", "ratio", "first epoch"]
    return _markdown(head, 2, lines)


def kernels(results: Path, name: str) -> str:
    """What our kernels reach alone, of a file that benchmarks/kernel_shapes.py wrote."""
    content = json.loads((results / "certification-speed" / f"{name}.json").read_text())
    lines = [
        [
            row["arch"],
            f"{row['evaluations_per_second']:,.0f}",
            f"{row['flops_per_second'] / 1e12:.0f}",
        ]
        for row in content["results"]
        if row["shape"] == {"rows": 2, "images": 2}
    ]
    return _markdown(["network", "evaluations/s", "TFLOP/s"], 1, lines)


def profile(results: Path, name: str) -> str:
    """Where the time goes, of a file that benchmarks/profile_engine.py wrote."""
    content = json.loads((results / "certification-speed" / f"{name}.json").read_text())
    busy = 1 - content["idle_share"]
    lines = [
        [_short(kernel), f"{100 * busy * share:.1f}%"]
        for kernel, share in content["kernel_shares"].items()
    ]
    lines.append(["other kernels", f"{100 * busy * content['other_kernels_share']:.1f}%"])
    lines.append(["no kernel", f"{100 * content['idle_share']:.1f}%"])
    rate = content["flops_per_second"] / content["limits"]["flops"]
    lines.append(["operations a second, of a large matrix product's", f"{100 * rate:.1f}%"])
    instruction = content["limits"].get("instruction_flops")
    if instruction:
        rate = content["flops_per_second"] / instruction
        lines.append(["of the matrix instruction's alone", f"{100 * rate:.1f}%"])
    return _markdown([content["source"], "of the time"], 1, lines)


def _short(kernel: str) -> str:
    """A kernel's name without its template arguments."""
    return f"`{kernel.removeprefix('void ').split('<')[0][:60]}`"


BUILDERS: dict[str, Callable[[Path, str], str]] = {
    "table": one_run,
    "beside-paper": beside_paper,
    "leads": leads,
    "adaptive": adaptive,
    "sampling": sampling,
    "speed": speed,
    "training": training,
    "training-speed": training_speed,
    "kernels": kernels,
    "profile": profile,
}
