"""The tables of the pages, derived once more from the raw rows, without the project's code.

`test_results.py` checks that the pages are what their generator makes; this checks the generator.
"""

import functools
import gzip
import itertools
import json
import lzma
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
RADII = [f"{step / 4:.2f}" for step in range(9)]
SIGMAS = ("0.25", "0.50", "1.00")
DIGITS = 5.1e-4
"""Radii are shown with three digits, rounded or, to be safe, rounded down."""

Rows = Sequence[dict[str, Any]]


@functools.cache
def by_model(folder: str, file: str = "certificates.jsonl") -> dict[str, list[dict[str, Any]]]:
    found = dict[str, list[dict[str, Any]]]()
    packed = RESULTS / folder / f"{file}.gz"
    with gzip.open(packed) if packed.exists() else lzma.open(packed.with_suffix(".xz")) as stream:
        for row in map(json.loads, stream):
            found.setdefault(row["model"], []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["index"])
    return found


@functools.cache
def config(folder: str) -> dict[str, Any]:
    return tomllib.loads((RESULTS / folder / "config.toml").read_text())


@functools.cache
def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """The lines of every table of a page by its builder and argument, as header to cell."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = {}
    for name, table in re.findall(r"<!-- (\S+ \S+) -->\n(.*?)<!-- end -->", text, re.DOTALL):
        lines = [
            [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
            for line in table.strip().splitlines()
        ]
        found[name] = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    return found


def results(name: str) -> list[dict[str, str]]:
    return tables("docs/results.md")[name]


def radii_of(rows: Rows, kind: str = "radius_cohen") -> list[float]:
    """Of the true class; 0 if another class is certified, or none (its radius is 0)."""
    return [row[kind] if row["candidate"] == row["label"] else 0.0 for row in rows]


def acr(rows: Rows, kind: str = "radius_cohen") -> float:
    return math.fsum(radii_of(rows, kind)) / len(rows)


def share(rows: Rows, radius: float) -> float:
    """Certified accuracy; at radius 0 images that abstain do not count."""
    right = [row for row in rows if row["prediction"] == row["label"] and row["radius"] >= radius]
    return len(right) / len(rows)


def envelope(models: Sequence[Rows]) -> float:
    """The area below the largest certified accuracy of any model at each radius."""
    steps = sorted({0.0, *itertools.chain.from_iterable(map(radii_of, models))})
    sizes = [np.sort(radii_of(rows)) for rows in models]
    return math.fsum(
        (after - before) * max((len(own) - np.searchsorted(own, after)) / len(own) for own in sizes)
        for before, after in itertools.pairwise(steps)
    )


def number(cell: str) -> float:
    """The first number of a cell, a difference before its interval."""
    found = re.match(r"[-+]?[\d,]+(\.\d+)?", cell)
    assert found, cell
    return float(found[0].replace(",", ""))


def close(cell: str, value: float, tolerance: float = DIGITS) -> None:
    assert number(cell) == pytest.approx(value, abs=tolerance), cell


def radius(cell: str, value: float) -> None:
    """Radii are never shown larger than they are."""
    assert number(cell) == pytest.approx(math.floor(1000 * value + 1e-9) / 1000), cell


def ensembles() -> list[tuple[str, str, int, str]]:
    """Folder, training, members and noise level of every SWEEN on CIFAR-10."""
    pattern = re.compile(r"cifar10-sween(\d)-(\w+)-sigma(\d\.\d\d)")
    found = [pattern.fullmatch(folder.name) for folder in RESULTS.iterdir()]
    return sorted((one[0], one[2], int(one[1]), one[3]) for one in found if one)


def members(folder: str) -> list[list[dict[str, Any]]]:
    return [by_model(folder)[name] for name in config(folder)["members"]]


def line_of(name: str, **cells: str) -> dict[str, str]:
    (line,) = (
        line for line in results(name) if all(line[key] == own for key, own in cells.items())
    )
    return line


def test_certified_accuracy_beside_the_paper() -> None:
    for folder, training, size, sigma in ensembles():
        names = (f"ours: SWEEN-{size}", f"ours: UE-{size}")
        own, best = (
            line_of("beside-paper cifar10", training=training, model=name, σ=sigma)
            for name in names
        )
        rows, candidates = by_model(folder)[f"SWEEN-{size}"], members(folder)
        for column in RADII:
            close(own[column], 100 * share(rows, float(column)), 0.051)
            highest = max(share(one, float(column)) for one in candidates)
            close(best[column], 100 * highest, 0.051)
        radius(own["ACR"], acr(rows))
        radius(own["two-class ACR"], acr(rows, "radius_two_class"))
        radius(best["ACR"], max(map(acr, candidates)))


def test_the_readme_has_every_ensemble_beside_the_paper() -> None:
    table = tables("README.md")["acr-beside-paper cifar10"]
    # Two columns for each noise level, of which those of ours have one name.
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    for folder, training, size, sigma in ensembles():
        starts = [f"| {training} | SWEEN-{size} |", f"| {training}, paper: macer | SWEEN-{size} |"]
        (line,) = (line for line in lines if line.startswith(tuple(starts)))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        radius(cells[3 + 2 * SIGMAS.index(sigma)], acr(by_model(folder)[f"SWEEN-{size}"]))
    assert len(table) == len({(training, size) for _, training, size, _ in ensembles()}) + 1


def test_leads_over_the_envelope_and_over_other_weights() -> None:
    for folder, training, size, sigma in ensembles():
        model = f"SWEEN-{size}"
        line = line_of("leads cifar10", training=training, model=model, σ=sigma)
        rows, candidates = by_model(folder)[model], members(folder)
        for cell, one in zip(line["its candidates"].split(), candidates, strict=True):
            radius(cell, acr(one))
        radius(line["envelope"], envelope(candidates))
        close(line["lead"], acr(rows) - envelope(candidates))
        others = by_model(folder).get("convex") or by_model(folder)[f"{model}-convex"]
        close(line["lead over convex weights"], acr(rows) - acr(others))


def test_gains_next_to_the_paper_s() -> None:
    published = tomllib.loads((ROOT / "configs/published/paper.toml").read_text())["standard"]
    paper = {(row["model"], f"{row['sigma']:.2f}"): row["acr"] for row in published}
    for folder, training, size, sigma in ensembles():
        if training != "gaussian":
            continue
        line = line_of("gains cifar10", model=f"SWEEN-{size}", σ=sigma)
        best, own = max(map(acr, members(folder))), acr(by_model(folder)[f"SWEEN-{size}"])
        theirs = paper[f"SWEEN-{size}", sigma] - paper[f"UE-{size}", sigma]
        close(line["paper: gain"], theirs)
        close(line["ours: gain"], own - best)
        close(line["of the paper's"], 100 * (own - best) / theirs, 0.51)
    for sigma in SIGMAS:
        small, large = (
            acr(by_model(f"cifar10-sween{size}-gaussian-sigma{sigma}")[f"SWEEN-{size}"])
            for size in (3, 6)
        )
        close(line_of("sizes cifar10", σ=sigma)["ours"], large - small)


BY_SEED, BY_NOISE = (
    f"cifar10-{kind}-gaussian-sigma0.50" for kind in ("identical-seeds", "identical")
)


@pytest.mark.parametrize(
    ("folder", "table", "ours"),
    [(BY_SEED, "identical cifar10", "ours: "), (BY_NOISE, "identical-noise cifar10", "")],
    ids=["by seed", "by noise"],
)
def test_networks_of_one_architecture(folder: str, table: str, ours: str) -> None:
    models, names = by_model(folder), config(folder)["members"]
    for count, name in ((2, "first 2"), (3, "first 3"), (5, "first 5"), (8, "SWEEN")):
        for weights, own in (("sgd", name), ("equal", f"{name}-uniform")):
            line = line_of(table, model=f"{ours}the first {count}", weights=weights)
            for column in ("0.00", "0.50", "1.00", "1.50"):
                close(line[column], 100 * share(models[own], float(column)), 0.051)
            radius(line["ACR"], acr(models[own]))
            lead = acr(models[own]) - envelope([models[one] for one in names[:count]])
            close(line["lead over the envelope"], lead)
    (alone,) = (line for line in results(table) if line["model"] == f"{ours}one network")
    for cell, value in zip(
        alone["ACR"].split(" to "),
        (limit(acr(models[one]) for one in names) for limit in (min, max)),
        strict=True,
    ):
        radius(cell, value)


def test_networks_of_one_architecture_against_others() -> None:
    by_seed, by_noise = by_model(BY_SEED), by_model(BY_NOISE)
    others = {
        f"SWEEN-{size}": by_model(f"cifar10-sween{size}-gaussian-sigma0.50")[f"SWEEN-{size}"]
        for size in (3, 6)
    }
    three, eight, noise = "three by seed", "eight by seed", "eight, four of them with more noise"
    compared = {
        ("three, one of them with more noise", three): (
            by_noise["first 3-uniform"], by_seed["first 3-uniform"]
        ),
        (noise, eight): (by_noise["SWEEN-uniform"], by_seed["SWEEN-uniform"]),
        (noise, "the same by sgd"): (by_noise["SWEEN-uniform"], by_noise["SWEEN"]),
        (eight, "the same by sgd"): (by_seed["SWEEN-uniform"], by_seed["SWEEN"]),
        **{
            (name, other): (models["SWEEN-uniform"], rows)
            for other, rows in others.items()
            for name, models in ((eight, by_seed), (noise, by_noise))
        },
    }  # fmt: skip
    lines = results("diversity cifar10")
    assert len(lines) == len(compared)
    for line in lines:
        first, second = compared[line["ResNet-110, equal weights"], line["against"]]
        close(line["difference"], acr(first) - acr(second))
        radius(line["ACR"], acr(first))
        radius(line["of the other"], acr(second))


def test_weights_and_what_they_give() -> None:
    for folder, training, size, sigma in ensembles():
        if training != "gaussian":
            continue
        own, others = config(folder)["weights"], config(folder)["weightings"]
        name = next(name for name in others if "convex" in name)
        models = by_model(folder)
        for method, weights, rows in (
            ("sgd", own, models[f"SWEEN-{size}"]),
            ("convex", others[name], models[name]),
        ):
            cells = {"model": f"SWEEN-{size}", "σ": sigma, "weights by": method}
            line = line_of("weights cifar10", **cells)
            (column,) = (head for head in line if head.startswith("ResNet-20"))
            assert line[column].split() == [f"{weight:.2f}" for weight in weights]
            radius(line["ACR"], acr(rows))
            if method == "convex":
                close(line["difference"], acr(rows) - acr(models[f"SWEEN-{size}"]))


def test_objectives_and_bounds() -> None:
    folders = {
        training: folder
        for folder, training, size, sigma in ensembles()
        if (size, sigma) == (3, "0.50")
    }
    best = max(acr(by_model(folder)["SWEEN-3"]) for folder in folders.values())
    for training, folder in folders.items():
        line = line_of("trainings cifar10-sween3", training=training)
        own = acr(by_model(folder)["SWEEN-3"])
        radius(line["SWEEN-3"], own)
        alone = [acr(rows) for rows in members(folder)]
        for cell, value in zip(
            line["ACR of one"].split(" to "), (min(alone), max(alone)), strict=True
        ):
            radius(cell, value)
        if own < best:
            close(line["from the best"], own - best)
    for folder, training, size, sigma in ensembles():
        if training == "gaussian":
            rows = by_model(folder)[f"SWEEN-{size}"]
            line = line_of("bounds cifar10", model=f"SWEEN-{size}", σ=sigma)
            close(line["gain in ACR"], acr(rows, "radius_two_class") - acr(rows))


def test_our_rows_among_those_of_peers_and_one_network_by_each_objective() -> None:
    for folder, training, size, sigma in ensembles():
        rows = by_model(folder)[f"SWEEN-{size}"]
        cells = {"model": f"SWEEN-{size}, {training}", "by": "ours", "σ": sigma}
        line = line_of("beside-peers cifar10", **cells)
        radius(line["ACR"], acr(rows))
        for column in RADII:
            close(line[column], 100 * share(rows, float(column)), 0.051)
    plain = acr(by_model("cifar10-sween3-gaussian-sigma0.50")["resnet20"])
    for line in results("objectives resnet20"):
        rows = by_model(f"cifar10-sween3-{line['training']}-sigma0.50")["resnet20"]
        radius(line["ACR"], acr(rows))
        radius(line["two-class ACR"], acr(rows, "radius_two_class"))
        if line["training"] != "gaussian":
            close(line["lead over gaussian"], acr(rows) - plain)


def test_other_sampling_and_exact_noise() -> None:
    fixed = {row["index"]: row for row in by_model("cifar10-sween3-gaussian-sigma0.50")["SWEEN-3"]}
    folders = sorted(path.name for path in (RESULTS / "sampling").iterdir() if path.is_dir())
    for line, folder in zip(
        results("sampling cifar10-sween3-gaussian-sigma0.50"), folders, strict=True
    ):
        (rows,) = by_model(f"sampling/{folder}").values()
        samples = sum(row["samples"] for row in rows) / len(rows)
        assert number(line["images"]) == len(rows)
        close(line["samples per image"], samples, 0.51)
        close(line["of fixed"], 100 * samples / 100_100, 0.051)
        if line["ACR of fixed"] != "-":
            same = [fixed[row["index"]] for row in rows]
            close(line["ACR of fixed"], 100 * acr(rows) / acr(same), 0.051)
    noise = {
        row[0]["noise"]: row
        for name in ("float32", "exact")
        for row in by_model(f"noise/{name}").values()
    }
    for line in results("noise noise"):
        radius(line["ACR"], acr(noise[line["noise"]]))
        if line["difference in ACR"] != "-":
            apart = acr(noise[line["noise"]]) - acr(noise["float32"])
            close(line["difference in ACR"], apart, 5.1e-5)


def test_integers_beside_float16() -> None:
    runs = {
        rows[0]["precision"]: rows
        for name in ("float16", "int8")
        for rows in by_model(f"precision/{name}").values()
    }
    usual, integers = tables("docs/speed.md")["precision precision"]
    radius(usual["ACR"], acr(runs["float16+fused"]))
    radius(integers["ACR"], acr(runs["int8+fused"]))
    apart = acr(runs["int8+fused"]) - acr(runs["float16+fused"])
    close(integers["difference in ACR"], apart, 5.1e-5)


def test_photos() -> None:
    table = results("over-candidates imagenette")
    for folder, whole, size in (
        ("imagenette-sween3-gaussian-sigma0.50", "SWEEN-3", 3),
        ("imagenette-identical-gaussian-sigma0.50", "SWEEN", 3),
    ):
        rows = by_model(folder)[whole]
        (place,) = (place for place, line in enumerate(table) if line["model"] == whole)
        *alone, best, own = table[place - size - 1 : place + 1]
        radius(own["ACR"], acr(rows))
        for column in RADII[:7]:
            close(own[column], 100 * share(rows, float(column)), 0.051)
        for line, one in zip(alone, members(folder), strict=True):
            radius(line["ACR"], acr(one))
            close(line["lead of the ensemble"], acr(rows) - acr(one))
        close(best["lead of the ensemble"], acr(rows) - envelope(members(folder)))


def test_early_exits() -> None:
    photos = ("imagenette-sween3-gaussian-sigma0.50", "gaussian", 3, "0.50")
    for folder, training, size, sigma in (*ensembles(), photos):
        models, whole = by_model(folder), f"SWEEN-{size}"
        cells = {"training": training, "model": f"ours: {whole}", "σ": sigma}
        lines = [
            line
            for line in results(f"exits {folder.partition('-')[0]}")
            if all(line[key] == own for key, own in cells.items())
        ]
        assert len(lines) == sum(name == whole or f"{whole}+" in name for name in models)
        for line in lines:
            rule = line["exit"].partition(",")[0]
            rows = models[whole if rule == "none" else f"{whole}+{rule}"]
            evaluations = sum(row["member_evaluations"] for row in rows) / len(rows)
            radius(line["ACR"], acr(rows))
            close(line["evaluations per image"], evaluations, 0.51)
            close(line["saved"], 100 * (1 - evaluations / (size * rows[0]["samples"])), 0.51)
            if rule != "none":
                close(line["lost"], acr(models[whole]) - acr(rows), 5.1e-5)


def attacked(name: str) -> list[dict[str, Any]]:
    (rows,) = by_model(f"attacks/{name}", "attacks.jsonl").values()
    return rows


def resists(row: dict[str, Any], eps: float) -> bool:
    right: bool = row["clean_prediction"] == row["label"]
    return right and (not eps or row["prediction"] in (row["label"], -1))


def robust(name: str, eps: float) -> list[bool]:
    rows = attacked(name)
    asked = eps or min(row["eps"] for row in rows)
    return [resists(row, eps) for row in rows if row["eps"] == asked]


def test_attacks() -> None:
    certified = {
        **by_model("cifar10-sween6-gaussian-sigma0.50"),
        **by_model("cifar10-sween3-gaussian-sigma0.50"),
    }
    for line in results("attacks cifar10-sween3-gaussian-sigma0.50"):
        source, _, model = line["model"].partition(": ")
        if source == "paper":
            continue
        name = f"{line['attack']}-{model.lower().replace('-', '')}"
        indices = {row["index"] for row in attacked(name)}
        assert number(line["images"]) == len(indices)
        rows = [row for row in certified[model] if row["index"] in indices]
        for column in ("0.00", "0.25", "0.50", "0.75", "1.00"):
            if line[column] != "-":
                floor, ceiling = line[column].split(" / ")
                close(floor, 100 * share(rows, float(column)), 0.051)
                own = robust(name, float(column))
                close(ceiling, 100 * sum(own) / len(own), 0.051)
    for line in results("attack-leads rand"):
        for column in ("0.00", "0.25", "0.50", "0.75", "1.00"):
            own, other = (
                robust(f"rand-{name.lower().replace('-', '')}", float(column))
                for name in (line["model"], line["over"])
            )
            close(line[column], 100 * (sum(own) - sum(other)) / len(own), 0.051)


def test_costs() -> None:
    folder = RESULTS / "costs" / "costs-fast-sigma0.50"
    table = {line["Model"]: line for line in tables("docs/speed.md")["reproduced costs"]}
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    hours = {
        name: row["seconds_per_epoch"] * row["epochs"] / 3600
        for name, row in found.items()
        if "seconds_per_epoch" in row
    }
    ensemble = found["SWEEN-3"]
    weights = ensemble["weights_seconds"] / 3600
    hours["SWEEN-3"] = sum(hours[name] for name in ensemble["members"]) + weights
    close(table["weights of SWEEN-3"]["hours"], weights)
    for name, value in hours.items():
        close(table[name]["hours"], value)
        assert number(table[name]["parameters"]) == found[name]["parameters"]
        assert number(table[name]["FLOPs"]) == found[name]["flops"]
        close(table[name]["samples per second"], found[name]["samples_per_second"], 0.51)


def test_intervals_by_a_bootstrap_of_its_own() -> None:
    random = np.random.default_rng(1)
    folder = "cifar10-sween6-gaussian-sigma0.50"
    ours, other = (np.array(radii_of(by_model(folder)[name])) for name in ("SWEEN-6", "convex"))
    candidates = np.array([radii_of(rows) for rows in members(folder)])

    def lead(picks: np.ndarray) -> float:
        own = np.sort(candidates[:, picks], axis=1)
        size = len(picks)
        # Certified accuracy falls by 1/size at each radius: the largest at each height.
        steps = np.unique(own)
        shares = np.max([1 - np.searchsorted(one, steps) / size for one in own], axis=0)
        return float(ours[picks].mean() - (np.diff(steps, prepend=0.0) * shares).sum())

    claims: dict[str, Callable[[np.ndarray], float]] = {
        "lead over convex weights": lambda picks: float((ours - other)[picks].mean()),
        "lead": lead,
    }
    line = line_of("leads cifar10", training="gaussian", model="SWEEN-6", σ="0.50")
    for column, statistic in claims.items():
        picks = random.integers(0, len(ours), (2_000, len(ours)))
        low, high = np.quantile([statistic(one) for one in picks], [0.025, 0.975])
        shown = [float(end) for end in re.findall(r"[-+][\d.]+(?=[,\]])", line[column])]
        assert shown == pytest.approx([low, high], abs=1.6e-3)


def claim(text: str) -> dict[str, str]:
    (line,) = (
        line
        for name in ("held cifar10", "missed cifar10", "surprising cifar10")
        for line in tables("docs/findings.md")[name]
        if line[""].startswith(text)
    )
    return line


def test_findings() -> None:
    by_seed, by_noise = by_model(BY_SEED), by_model(BY_NOISE)
    six = by_model("cifar10-sween6-gaussian-sigma0.50")
    three = by_model("cifar10-sween3-gaussian-sigma0.50")
    differences = {
        "Of eight ResNet-110": acr(by_noise["SWEEN-uniform"]) - acr(by_noise["SWEEN"]),
        "With equal weights, ensembles": acr(by_noise["first 3-uniform"])
        - acr(by_seed["first 3-uniform"]),
        "Identical against diverse": acr(by_seed["SWEEN"]) - acr(six["SWEEN-6"]),
        "so do eight ResNet-110": acr(by_seed["SWEEN"])
        - max(acr(by_seed[name]) for name in config(BY_SEED)["members"]),
        "SWEEN-3 beats one ResNet-110": acr(three["SWEEN-3"]) - acr(six["resnet110"]),
        "ACR lost by Algorithm 1": acr(by_model("cifar10-sween6-gaussian-sigma0.25")["SWEEN-6"])
        - acr(by_model("cifar10-sween6-gaussian-sigma0.25")["SWEEN-6+paper"]),
    }
    for text, difference in differences.items():
        close(claim(text)["ours"], difference)
    radius(claim("ACR of SWEEN-6, σ = 0.50")["ours"], acr(six["SWEEN-6"]))
    close(claim("ACR of SWEEN-6, σ = 0.50")["missed by"], 0.71 - acr(six["SWEEN-6"]))
    for text, values in {
        "Bounding the runner-up": [
            acr(rows, "radius_two_class") - acr(rows)
            for folder, training, size, _ in ensembles()
            if training == "gaussian"
            for rows in [by_model(folder)[f"SWEEN-{size}"]]
        ],
        "SWEEN-3 and SWEEN-6 beat their best candidate": [
            acr(by_model(folder)[f"SWEEN-{size}"]) - max(map(acr, members(folder)))
            for folder, training, size, _ in ensembles()
            if training == "gaussian"
        ],
    }.items():
        for cell, limit in zip(claim(text)["ours"].split(" to "), (min, max), strict=True):
            close(cell, limit(values))
    exact = [
        sum(row["member_evaluations"] for row in rows) / len(rows)
        for sigma in ("0.50", "1.00")
        for rows in [by_model(f"cifar10-sween6-gaussian-sigma{sigma}")["SWEEN-6+exact"]]
    ]
    found = re.findall(r"([\d,]+) against", claim("The exact exit")["ours"])
    assert found == [f"{mean:,.0f}" for mean in exact]
    leads = [
        sum(robust("rand-sween3", eps)) - sum(robust(f"rand-{name}", eps))
        for name in ("resnet20", "resnet26", "resnet32")
        for eps in (0.25, 0.5, 0.75, 1.0)
    ]
    assert number(claim("SWEEN-3 withstands AutoAttack")["ours"]) == sum(lead > 0 for lead in leads)
