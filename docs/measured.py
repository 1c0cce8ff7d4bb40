"""The measured tables of README.md and the pages, each built from results/ alone."""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measured_attacks
import measured_claims
import measured_findings
import measured_identical
import measured_left_out
import measured_planning
import measured_speed
from measured_findings import by_method, lead_over_envelope, load, published, signed
from tables import markdown, runs

from sween.demo import RADII
from sween.evaluation import (
    average_certified_radius,
    paired_bootstrap,
)
from sween.records import Certificate, format_radius
from sween.report import MeasuredRun, load_run, to_markdown
from sween.report import tables as report_tables
from sween.report.rows import DEFAULT_RADII, Row
from sween.reproduce import Workspace, make_tables, read_plan
from sween.training import OBJECTIVES

IDENTICAL = "8 ResNet-110"


def one_run(results: Path, name: str) -> str:
    """The table of one folder."""
    return to_markdown(load_run(results / name, radii=RADII).rows)


def beside_paper(results: Path, dataset: str) -> str:
    """Every run of results/ named DATASET-sweenK-TRAINING-sigmaS next to the published rows."""
    published = tomllib.loads((results / "published" / f"{dataset}.toml").read_text())["row"]
    head = ["training", "model", "σ", *(f"{radius:.2f}" for radius in DEFAULT_RADII), "ACR"]
    lines: list[list[str]] = []
    for folder, training, sigma in runs(results, dataset):
        run = load(folder)
        for row in published:
            if row["sigma"] == sigma and row["training"] == _counterpart(training):
                line = _published_line(row)
                beside = row["model"].endswith(f"-{len(run.candidates)}")
                # Rows that several of our runs are compared with: once is enough.
                if (beside or row["model"].startswith("ResNet")) and line not in lines:
                    lines.append(line)
        for row in run.rows:
            if row.kind == "envelope":
                row = dataclasses.replace(row, model=f"{row.model}-{len(run.candidates)}")
            elif row.kind != "ensemble" or "+" in row.model:
                continue
            lines.append(_measured_line(row, training))
    return markdown([*head, "two-class ACR"], 2, lines)


def acr_beside_paper(results: Path, dataset: str) -> str:
    """The ACR of every ensemble next to the published one, a column for each noise level."""
    published = tomllib.loads((results / "published" / f"{dataset}.toml").read_text())["row"]
    theirs = {(row["training"], row["model"], row["sigma"]): row["acr"] for row in published}
    found: dict[tuple[str, str], dict[float, float]] = {}
    for folder, training, sigma in runs(results, dataset):
        for row in load(folder).rows:
            if row.kind == "ensemble" and "+" not in row.model:
                found.setdefault((training, row.model), {})[sigma] = row.acr
    for sigma, _, own, paper in measured_identical.whole_ensembles(results, dataset):
        found.setdefault(("gaussian", IDENTICAL), {})[sigma] = own.acr
        theirs["gaussian", IDENTICAL, sigma] = paper
    sigmas = sorted({sigma for own in found.values() for sigma in own})
    lines = []
    for (training, model), own in sorted(found.items(), key=lambda item: item[0][0] != "gaussian"):
        other = _counterpart(training)
        cells = [f"{training}, paper: {other}" if other != training else training, model]
        for sigma in sigmas:
            paper = theirs.get((other, model, sigma)) if sigma in own else None
            cells += [
                "-" if paper is None else f"{paper:.3f}",
                format_radius(own[sigma]) if sigma in own else "-",
            ]
        lines.append(cells)
    heads = [cell for sigma in sigmas for cell in (f"σ = {sigma:.2f}: paper", "ours")]
    return markdown(["training", "ensemble", *heads], 2, lines)


def beside_peers(results: Path, dataset: str) -> str:
    """Our ensembles next to what others published, by noise level and ACR."""
    file = results.parent / "configs" / "published" / "record.toml"
    lines = []
    for row in tomllib.loads(file.read_text())["record"]:
        if "acr" in row:
            accuracies = [f"{value:.1f}" for value in row.get("accuracies", ())]
            cells = [row["model"], row["source"], row["images"], *(accuracies or ["-"] * 9)]
            lines.append((row["sigma"], row["acr"], cells))
    for folder, training, sigma in runs(results, dataset):
        ensembles = [row for row in load(folder).rows if row.kind == "ensemble"]
        own = max((row for row in ensembles if "+" not in row.model), key=lambda row: row.acr)
        accuracies = [f"{100 * value:.1f}" for value in own.accuracies]
        lines.append(
            (sigma, own.acr, [f"**{own.model}, {training}**", "ours", "888:1888", *accuracies])
        )
    for sigma, images, own, _ in measured_identical.whole_ensembles(results, dataset):
        accuracies = [f"{100 * value:.1f}" for value in own.accuracies]
        lines.append((sigma, own.acr, [f"**{IDENTICAL}, gaussian**", "ours", images, *accuracies]))
    lines.sort(key=lambda line: line[:2])
    ordered = [[f"{sigma:.2f}", *cells, format_radius(acr)] for sigma, acr, cells in lines]
    radii = [f"{0.25 * step:.2f}" for step in range(9)]
    return markdown(["σ", "model", "by", "test images", *radii, "ACR"], 4, ordered)


def _counterpart(training: str) -> str:
    """What the paper's rows are set against: its MACER rows, for objectives it does not have."""
    return "gaussian" if training == "gaussian" else "macer"


def _published_line(row: dict[str, Any]) -> list[str]:
    accuracies = [f"{value:.1f}" for value in row["accuracies"]]
    model = f"paper: {row['model']}"
    return [row["training"], model, f"{row['sigma']:.2f}", *accuracies, f"{row['acr']:.3f}", "-"]


def _measured_line(row: Row, training: str) -> list[str]:
    accuracies = [f"{100 * value:.1f}" for value in row.accuracies]
    radii: Sequence[float | None] = (row.acr, row.acr_two_class)
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
    lines = []
    for folder, training, sigma in runs(results, dataset):
        run = load(folder)
        assert run.ensemble is not None
        own = run.models[run.ensemble]
        over = lead_over_envelope(folder)
        weights = paired_bootstrap(own, by_method(run, "convex"))
        radii = [average_certified_radius(run.models[name]) for name in run.candidates]
        cells = [" ".join(map(format_radius, radii))]
        cells += [format_radius(over.second), format_radius(over.first)]
        who = [training, run.ensemble, f"{sigma:.2f}"]
        lines.append([*who, *cells, signed(over), signed(weights)])
    head = ["training", "model", "σ", "its candidates", "envelope", "ACR"]
    return markdown([*head, "lead", "lead over convex weights"], 2, lines)


def over_candidates(results: Path, dataset: str) -> str:
    """Every model of results/DATASET-*, and what each ensemble leads over each candidate.

    Radii beyond the largest that the votes can certify are left out.
    """
    found: list[tuple[Row, str]] = []
    for folder in sorted(results.glob(f"{dataset}-*"), reverse=True):
        run = load(folder)
        assert run.ensemble is not None
        own = run.models[run.ensemble]
        for row in run.rows:
            if row.kind == "envelope":
                name = f"UE-{len(run.candidates)}"
                lead = signed(lead_over_envelope(folder))
                found.append((dataclasses.replace(row, model=name), lead))
            elif row.model in run.candidates:
                found.append((row, signed(paired_bootstrap(own, run.models[row.model]))))
            elif row.model == run.ensemble:
                found.append((row, "-"))
    accuracies = [row.accuracies for row, _ in found]
    shown = [place for place, own in enumerate(zip(*accuracies, strict=True)) if any(own)]
    lines = []
    for row, lead in found:
        shares = [f"{100 * row.accuracies[place]:.1f}" for place in shown]
        cells = [f"{row.sigma:.2f}", row.model, *shares, format_radius(row.acr)]
        if row.kind == "ensemble":
            cells = [f"**{cell}**" for cell in cells]
        lines.append([*cells, lead])
    radii = [f"{DEFAULT_RADII[place]:.2f}" for place in shown]
    return markdown(["σ", "model", *radii, "ACR", "lead of the ensemble"], 2, lines)


def exits(results: Path, dataset: str) -> str:
    """What early exits save and lose, and what the paper's table says."""
    lines = []
    for folder, training, sigma in runs(results, dataset):
        run = load(folder)
        assert run.ensemble is not None
        full, members = run.models[run.ensemble], len(run.candidates)
        of_exit = {
            rows[0].exit: rows
            for name, rows in run.models.items()
            if name == run.ensemble or name.startswith(f"{run.ensemble}+")
        }
        found = [
            ("paper", row["exit"], f"{row['acr']:.3f}", "-", row["evaluations"])
            for row in published()["adaptive"]
            if (members, training, sigma) == (6, "gaussian", row["sigma"])
        ]
        for exit in sorted(
            of_exit, key=lambda exit: ("none", "paper", "mixed", "exact").index(_rule(exit))
        ):
            rows = of_exit[exit]
            lost = "-" if rows is full else signed(paired_bootstrap(full, rows), digits=4)
            evaluations = sum(row.member_evaluations for row in rows) / len(rows)
            acr = format_radius(average_certified_radius(rows))
            found.append(("ours", _exit(exit), acr, lost, evaluations))
        samples = members * sum(row.samples for row in full) / len(full)
        for source, exit, acr, lost, evaluations in found:
            who = [training, f"{source}: {run.ensemble}", exit, f"{sigma:.2f}", acr, lost]
            lines.append([*who, f"{evaluations:,.0f}", f"{100 * (1 - evaluations / samples):.0f}%"])
    head = ["training", "model", "exit", "σ", "ACR", "lost", "evaluations per image", "saved"]
    return markdown(head, 3, lines)


def _rule(described: str) -> str:
    return described.split("(")[0]


def _exit(described: str) -> str:
    """An exit as the table names it: the paper's with its threshold."""
    threshold = re.search(r"threshold=([0-9.]+)", described)
    return _rule(described) + (f", T = {threshold[1]}" if threshold else "")


def sampling(results: Path, fixed: str) -> str:
    """Sampling modes compared with n samples for every image, of the same ensemble."""
    known = load(results / fixed)
    assert known.ensemble is not None
    wanted = {row.index: row for row in known.models[known.ensemble]}
    lines = []
    for folder in sorted((results / "sampling").iterdir()):
        if (folder / "config.toml").is_file():
            lines.append(_sampling_line(load(folder), wanted))
    head = ["sampling", "images", "samples per image", "of fixed", "s per image", "s in total"]
    return markdown([*head, "same decisions", "ACR of fixed"], 1, lines)


def _sampling_line(run: MeasuredRun, wanted: dict[int, Certificate]) -> list[str]:
    (rows,) = run.models.values()
    samples = sum(row.samples for row in rows) / len(rows)
    fixed = sum(row.samples for row in wanted.values()) / len(wanted)
    seconds = sum(row.seconds for row in rows) / len(rows)
    shared = [row for row in rows if row.index in wanted]
    cells = [f"{len(rows):,}", f"{samples:,.0f}", f"{100 * samples / fixed:.1f}%"]
    cells += [f"{seconds:.4f}", f"{seconds * len(rows):.0f}"]
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
        return f"tolerance {run.config.settings.tolerance:g}"
    return f"{run.sample.sampling} {run.config.settings.budget:,}"


def noise(results: Path, folder: str) -> str:
    """Exact noise compared with float32 noise on the same images: time and ACR."""
    return _in_two_ways(results / folder, "noise", "float32", "exact")


def precision(results: Path, folder: str) -> str:
    """8-bit integers compared with float16 on the same images: time and ACR."""
    return _in_two_ways(results / folder, "precision", "float16", "int8")


def _in_two_ways(folder: Path, field: str, usual: str, other: str) -> str:
    """Two runs of one model on the same images that differ in a field of their rows."""
    runs = [load(folder / name) for name in (usual, other)]
    plain, changed = (next(iter(run.models.values())) for run in runs)
    lines = [
        [
            getattr(rows[0], field),
            rows[0].exit,
            f"{len(rows):,}",
            format_radius(average_certified_radius(rows)),
            f"{sum(row.seconds for row in rows) / len(rows):.4f}",
        ]
        for rows in (plain, changed)
    ]
    lines[0].append("-")
    lines[1].append(signed(paired_bootstrap(changed, plain), digits=4))
    head = [field, "exit", "images", "ACR", "s per image", "difference in ACR"]
    return markdown(head, 2, lines)


def objectives(results: Path, arch: str) -> str:
    """One network by every objective it was trained with at sigma 0.50, against plain training."""
    found: dict[str, MeasuredRun] = {}
    for folder, training, sigma in runs(results, "cifar10"):
        if sigma == 0.5:
            found.setdefault(training, load(folder))
    alone = re.compile(rf"cifar10-{arch}-([a-z]+)-sigma0\.50")
    for folder in sorted(results.iterdir()):
        if name := alone.fullmatch(folder.name):
            found.setdefault(name[1], load(folder))
    base = found["gaussian"].models[arch]
    lines = []
    for training, run in found.items():
        (row,) = (row for row in run.rows if row.model == arch)
        own = run.models[arch]
        lead = "-" if training == "gaussian" else signed(paired_bootstrap(own, base))
        lines.append([*_measured_line(row, training), lead])
    head = ["training", "model", "σ", *(f"{radius:.2f}" for radius in DEFAULT_RADII), "ACR"]
    return markdown([*head, "two-class ACR", "lead over gaussian"], 2, lines)


def methods(results: Path, name: str) -> str:
    """The objectives that `sween train --method` knows."""
    lines = []
    for method, objective in OBJECTIVES.items():
        weights = [
            f"{weight:g} at {sigma:g}{' (late)' if sigma in objective.delayed_at else ''}"
            for sigma, weight in objective.regularisers.items()
        ]
        cells = [objective.description, f"{objective.copies}", ", ".join(weights) or "-"]
        lines.append([f"`{method}`", *cells])
    return markdown(
        ["method", "loss", "noisy copies", "λ at σ, as published but for `temporal`"], 2, lines
    )


def reproduced(results: Path, target: str) -> str:
    """The table of `sween reproduce TARGET`, of what results/ has in the folders of its plan."""
    plan = read_plan(target).at(recipe="fast", sigmas=())
    (table,) = make_tables(Workspace(plan, recipe="fast", out=results))
    return report_tables.markdown(table)


BUILDERS: dict[str, Callable[[Path, str], str]] = {
    "table": one_run,
    "methods": methods,
    "beside-paper": beside_paper,
    "acr-beside-paper": acr_beside_paper,
    "beside-peers": beside_peers,
    "leads": leads,
    "over-candidates": over_candidates,
    "exits": exits,
    "sampling": sampling,
    "noise": noise,
    "precision": precision,
    "objectives": objectives,
    "attacks": measured_attacks.attacks,
    "attack-leads": measured_attacks.attack_leads,
    "reproduced": reproduced,
    "held": measured_claims.held,
    "missed": measured_claims.missed,
    "surprising": measured_claims.surprising,
    "gains": measured_findings.gains,
    "sizes": measured_findings.sizes,
    "weights": measured_findings.weights,
    "bounds": measured_findings.bounds,
    "trainings": measured_findings.trainings,
    "identical": measured_identical.identical,
    "identical-noise": measured_identical.identical_noise,
    "diversity": measured_identical.diversity,
    "left-out": measured_left_out.left_out,
    "predicted-costs": measured_planning.predicted_costs,
    "imagenet-costs": measured_planning.imagenet_costs,
    "speed": measured_speed.speed,
    "any-network": measured_speed.any_network,
    "plain-compile": measured_speed.plain_compile,
    "same-counts": measured_speed.same_counts,
    "training": measured_speed.training,
    "training-speed": measured_speed.training_speed,
    "kernels": measured_speed.kernels,
    "profile": measured_speed.profile,
    "stages": measured_speed.stages,
    "ablation": measured_speed.ablation,
    "speed-and-limits": measured_speed.speed_and_limits,
    "data-memory": measured_speed.data_memory,
}
