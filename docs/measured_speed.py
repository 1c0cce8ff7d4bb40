"""The measured tables of speed, each built from results/ alone."""

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from tables import markdown, runs

from sween.runs import TrainingRun

LEAST_KERNEL_SHARE = 0.01
"""Of a kernel that is shown by its name."""


def _parts(results: Path, name: str) -> list[Path]:
    """NAME.json, NAME-2.json, ... in the order in which they were measured."""
    files = (results / "certification-speed").glob(f"{name}*.json")
    return sorted(files, key=lambda file: int(file.stem.removeprefix(name).strip("-") or 1))


def speed(results: Path, name: str) -> str:
    """The rows of a file that `sween bench --out` wrote."""
    content = json.loads((results / "certification-speed" / f"{name}.json").read_text())
    head = ["model", "exit", "arithmetic", "samples/s", "published loop", "ratio", "s per image"]
    return markdown(head, 3, [_speed_cells(row) for row in content["results"]])


def _speed_cells(row: dict[str, Any]) -> list[str]:
    return [
        row["model"],
        row["exit"],
        row["precision"],
        f"{row['samples_per_second']:,.0f}",
        f"{row['reference_samples_per_second']:,.0f}",
        f"{row['ratio']:.1f}",
        f"{row['seconds_per_certificate']:.3f}",
    ]


def any_network(results: Path, name: str) -> str:
    """What benchmarks/any_network.py wrote, NAME*.json; two processes are one line.

    Networks in a later file are left out of the earlier ones.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for file in _parts(results, name):
        again: dict[str, list[dict[str, Any]]] = {}
        for row in json.loads(file.read_text())["results"]:
            again.setdefault(row["model"], []).append(row)
        rows |= again
    lines = []
    for row in itertools.chain.from_iterable(rows.values()):
        first = row["first_vote_seconds"]
        if row["run"] == "again":
            lines[-1][-1] = f"{first:.1f}"
            continue
        cells = _speed_cells(row)
        share = f"{100 * row['share_of_matmul']:.0f}%"
        shape = "x".join(map(str, row["image_shape"]))
        seconds = [first, first + row["seconds_per_certificate"]]
        waits = [f"{own:.1f}" for own in seconds]
        lines.append([cells[0], shape, row["compile_mode"], *cells[2:6], share, *waits, ""])
    head = ["model", "image", "compiled", "arithmetic", "samples/s", "published loop", "ratio"]
    head += ["of a matrix product", "s to first vote", "to first certificate"]
    return markdown([*head, "first vote in a later run"], 4, lines)


def plain_compile(results: Path, name: str) -> str:
    """What benchmarks/any_network.py wrote with --mode plain, NAME*.json; later files replace."""
    rows: dict[str, dict[str, Any]] = {}
    for file in _parts(results, name):
        rows |= {row["model"]: row for row in json.loads(file.read_text())["results"]}
    lines = []
    for row in rows.values():
        turns = zip(*row["turns_with_plain"], strict=True)
        rates = [f"{statistics.median(own):,.0f}" for own in turns]
        lines.append([row["model"], row["precision"], *rates, f"{row['ratio_to_plain']:.2f}"])
    return markdown(["model", "arithmetic", "samples/s", "torch.compile", "ratio"], 2, lines)


def same_counts(results: Path, name: str) -> str:
    """What benchmarks/same_counts.py wrote, NAME*.json; a later file's networks replace others."""
    rows: dict[str, dict[str, Any]] = {}
    for file in _parts(results, name):
        for row in json.loads(file.read_text())["results"]:
            rows[row["network"]] = row
    lines = []
    for row in rows.values():
        largest = max(abs(own) for own in row["z"])
        cells = [row["network"], row["arithmetic"], f"{row['n']:,}", f"{largest:.2f}"]
        lines.append([*cells, f"{row['p']:.2f}"])
    return markdown(["model", "arithmetic", "votes each", "largest z of 10", "p"], 2, lines)


_STAGES = {
    "import": "only imports sween",
    "list": "lists the folder",
    "cache": "decodes the training images into the cache, and hashes them",
    "cached": "trains from the cache",
    "crops": "checks all photos, then trains on resized crops",
    "certify": "certifies 100 images at n = 1,000",
    "held": "trains with all images in memory (a mapped file)",
}


def data_memory(results: Path, name: str) -> str:
    """The stages of a file that benchmarks/data_memory.py wrote."""
    content = json.loads((results / "data-streaming" / f"{name}.json").read_text())
    lines = [
        [_STAGES[row["stage"]], f"{row['peak_pss_mb']:,} MB", f"{row['peak_file_mb']:,} MB"]
        for row in content["stages"]
    ]
    return markdown(["a process that", "peak", "pages of files in it, at most"], 1, lines)


def speed_and_limits(results: Path, name: str) -> str:
    """NAME-*.json of benchmarks/certification_speed.py: ART and the processor's limits too."""
    lines = []
    for file in sorted((results / "certification-speed").glob(f"{name}-*.json"), reverse=True):
        for row in json.loads(file.read_text())["results"]:
            theirs = statistics.median(turn[1] for turn in row["turns_with_art"])
            ratios = [f"{theirs:,.0f}", f"{row['ratio_to_art']:.2f}"]
            limits = [f"{100 * row[share]:.0f}%" for share in ("share_of_matmul", "share_of_fma")]
            lines.append([*_speed_cells(row)[2:6], *ratios, *limits])
    head = ["arithmetic", "samples/s", "published loop", "ratio", "ART's best", "ratio"]
    return markdown([*head, "of a matrix product", "of float32 multiply-adds"], 1, lines)


def training(results: Path, dataset: str) -> str:
    """How long the candidates of each run took, trained at once on one GPU."""
    lines = []
    for folder, name, sigma in runs(results, dataset):
        folders = sorted((folder / "training").glob("*resnet*"), key=_depth)
        seconds = [[row.seconds for row in TrainingRun.read(each).metrics] for each in folders]
        longest = max(seconds, key=sum)
        depths = ", ".join(f"{_depth(each)}" for each in folders)
        cells = [f"ResNet-{depths}", f"{len(longest)}", f"{sum(longest):.0f}"]
        first = f"{max(own[0] for own in seconds):.0f}"
        cells += [first, f"{statistics.median(longest):.2f}"]
        lines.append([name, cells[0], f"{sigma:.2f}", *cells[1:]])
    head = ["training", "candidates", "σ", "epochs", "s", "of which first epoch", "s per epoch"]
    return markdown(head, 2, lines)


def _depth(run: Path) -> int:
    """Of the network of a training run, whose folder is named [imagenet-]resnetD-seedN."""
    return int(run.name.partition("resnet")[2].partition("-")[0])


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
    head = ["network", "compiled", "s per epoch", "plain loop", "ratio", "first epoch"]
    return markdown(head, 2, lines)


def kernels(results: Path, name: str) -> str:
    """What our kernels reach alone, of a file that benchmarks/kernel_shapes.py wrote."""
    content = json.loads((results / "certification-speed" / f"{name}.json").read_text())
    shown: dict[str, dict[str, Any]] = {}
    for row in content["results"]:
        fastest = shown.get(row["arch"], row)
        slower = row["evaluations_per_second"] < fastest["evaluations_per_second"]
        if row["shape"] == {"rows": 2, "images": 2} or ("parts" in row["shape"] and not slower):
            shown[row["arch"]] = row
    lines = [
        [
            row["arch"],
            f"{row['evaluations_per_second']:,.0f}",
            f"{row['flops_per_second'] / 1e12:.0f}",
        ]
        for row in shown.values()
    ]
    return markdown(["network", "evaluations/s", "TFLOP/s"], 1, lines)


def stages(results: Path, name: str) -> str:
    """What each stage's kernel reaches, of the rate of the matrix instruction that it uses."""
    folder = results / "certification-speed"
    content = json.loads((folder / f"{name}.json").read_text())
    limit = json.loads((folder / "h200-profile.json").read_text())["limits"]["instruction_flops"]
    lines = []
    for row in content["results"]:
        if row["shape"] != {"rows": 2, "images": 2}:
            continue
        milliseconds = row["stage_milliseconds"].values()
        for stage, (flops, spent) in enumerate(
            zip(_stage_flops(row["arch"]), milliseconds, strict=True), start=1
        ):
            rate = flops * content["rows"] / (spent / 1000)
            share = spent / sum(milliseconds)
            cells = [f"{100 * share:.0f}%", f"{rate / 1e12:.0f}", f"{100 * rate / limit:.0f}%"]
            lines.append([row["arch"], f"`stage{stage}`", *cells])
    head = ["network", "kernel", "of its time", "TFLOP/s", "of the instruction's"]
    return markdown(head, 2, lines)


def ablation(results: Path, name: str) -> str:
    """A stage's time with one kind of work left out, and what its products alone would take."""
    folder = results / "certification-speed"
    content = json.loads((folder / f"{name}.json").read_text())
    limit = json.loads((folder / "h200-profile.json").read_text())["limits"]["instruction_flops"]
    kinds = list(dict.fromkeys(row["without"] for row in content["results"]))
    lines = []
    for arch in dict.fromkeys(row["arch"] for row in content["results"]):
        spent = {
            row["without"]: list(row["stage_milliseconds"].values())
            for row in content["results"]
            if row["arch"] == arch
        }
        for stage, (flops, whole) in enumerate(
            zip(_stage_flops(arch), spent["nothing"], strict=True)
        ):
            alone = flops * content["rows"] / limit * 1000 / whole
            others = [spent[kind][stage] / whole for kind in kinds if kind != "nothing"]
            cells = [f"{100 * share:.0f}%" for share in (alone, *others)]
            lines.append([arch, f"`stage{stage + 1}`", *cells])
    without = [f"without {kind}" for kind in kinds if kind != "nothing"]
    return markdown(["network", "kernel", "products alone", *without], 2, lines)


def _stage_flops(arch: str) -> tuple[int, int, int]:
    """Operations per image of each kernel: it also has the convolutions into the next stage."""
    blocks = (int(arch.removeprefix("resnet")) - 2) // 6
    inside = 2 * 9 * 16 * 16 * 32 * 32  # the same in all stages: half the size, twice the channels
    down = 2 * (9 + 1) * 16 * 32 * 16 * 16
    first = 2 * 9 * 3 * 16 * 32 * 32 + 2 * blocks * inside + down
    return first, (2 * blocks - 1) * inside + down, (2 * blocks - 1) * inside + 2 * 64 * 10


def profile(results: Path, name: str) -> str:
    """Where the time goes, of a file that benchmarks/profile_engine.py wrote."""
    content = json.loads((results / "certification-speed" / f"{name}.json").read_text())
    busy = 1 - content["idle_share"]
    large = {
        kernel: share
        for kernel, share in content["kernel_shares"].items()
        if share >= LEAST_KERNEL_SHARE
    }
    lines = [[_short(kernel), f"{100 * busy * share:.1f}%"] for kernel, share in large.items()]
    lines.append(["other kernels", f"{100 * busy * (1 - sum(large.values())):.1f}%"])
    lines.append(["no kernel", f"{100 * content['idle_share']:.1f}%"])
    if content["flops_per_second"]:
        for what, limit in (
            ("operations per second, of those of a large matrix product", "flops"),
            ("of the matrix instruction's alone", "instruction_flops"),
        ):
            rate = content["flops_per_second"] / content["limits"][limit]
            lines.append([what, f"{100 * rate:.1f}%"])
    return markdown([content["source"], "of the time"], 1, lines)


def _short(kernel: str) -> str:
    """A kernel's name without its template arguments."""
    return f"`{kernel.removeprefix('void ').split('<')[0][:60]}`"
