"""What each ingredient of the record gives: objective, optimizer, weighed images, width, members.

    python benchmarks/ablation.py train --sigma 0.5 --epochs 60 --data-root DIR --out RUNS \\
        --minutes 25 --at-once 5
    python benchmarks/ablation.py score --sigma 0.5 --epochs 60 --data-root DIR --out RUNS \\
        --rows rows.jsonl
    python benchmarks/ablation.py table rows.jsonl

All on the weight-solving split, never on test images. Each variation gets as many epochs as cost no
more passes over the training images than the record's recipe, by `TrainConfig.passes_at`, unless it
is about that; --epochs are those of the recipe. `train` works through the variations below, the
seeds of each at once, --at-once of them in processes of their own (one alone leaves a large GPU
idle), and stops in time; the same command resumes. `score` writes one row for each
variation whose networks are trained, and for ensembles of them, with equal and with solved weights;
it certifies every other image of the split, and solves weights on the others. Rows of the same
networks that are there already are left out. A row's lead is over one network by the record's
recipe, image by image, with half the width of a normal 95% interval. Radii go into rows.npz, by the
networks of the row, or by its variation where weights were solved. `table` prints them as they
would be if 100,000 votes had the shares of the few that were cast: a radius is cut off at what
unanimous votes certify, so that few votes hide what is gained at large radii.
"""

import argparse
import bisect
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tune_ensemble import Scorer, expected_radii

from sween.data import load_dataset
from sween.ensemble import load_members, solve_weights
from sween.models import count_flops, load_checkpoint
from sween.reproduce import TimeLimitReached
from sween.run_folder import describe_environment
from sween.runs import TrainingRun
from sween.runs.training import is_finished
from sween.training import TrainConfig, train_many
from sween.training.recipes import read_recipe

BASE = "the record's recipe"
RECIPE = "fast/consistency-wide"

PLAIN = {"radius_gain": None}
"""Images with equal weights."""

VARIATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: (RECIPE, {}),
    "without radius gains": (RECIPE, PLAIN),
    "radius gains in the last third": (RECIPE, {"radius_gain_from": 0.67}),
    "by SGD": (RECIPE, {"optimizer": "sgd"}),
    "by SGD, without radius gains": (RECIPE, {"optimizer": "sgd", **PLAIN}),
    "gaussian": (RECIPE, {"method": "gaussian", **PLAIN}),
    "lambda 5": (RECIPE, {"regulariser": 5.0}),
    "lambda 20": (RECIPE, {"regulariser": 20.0}),
    "temporal": (RECIPE, {"method": "temporal"}),
    "attacked noise": (RECIPE, {"attack_steps": 3, "attack_size": 0.5, "attack_from": 0.6}),
    "acr": ("fast/acr", {"optimizer": "muon"}),
    "acr without attack": ("fast/acr", {"optimizer": "muon", "attack_steps": 0}),
    "acr with the attack alone": (
        "fast/acr",
        {"optimizer": "muon", "drop_below": 0.0, "reweigh_every": 0},
    ),
    "catrs": ("fast/catrs", {"optimizer": "muon"}),
    "half the passes": (RECIPE, {"passes": 0.5}),
    "twice the passes": (RECIPE, {"passes": 2.0}),
    "resnet20": (RECIPE, {"arch": "resnet20"}),
    "resnet20x2": (RECIPE, {"arch": "resnet20x2"}),
    "resnet32x2": (RECIPE, {"arch": "resnet32x2"}),
    "resnet20x4": (RECIPE, {"arch": "resnet20x4"}),
    "resnet20x4, without radius gains": (RECIPE, {"arch": "resnet20x4", **PLAIN}),
    "half the resolution": (RECIPE, {"arch": "resnet20x4-half"}),
    "half the resolution, without radius gains": (RECIPE, {"arch": "resnet20x4-half", **PLAIN}),
    "blocks in later stages": (RECIPE, {"arch": "resnet20x2-late"}),
    "half the rate of Muon": (RECIPE, {"matrix_rate": 0.01}),
    "twice the rate of Muon": (RECIPE, {"matrix_rate": 0.04}),
}
"""The recipe of each, and what replaces its options, or how many times the passes of the recipe it
gets. That of --arch itself is the first one."""

MORE_SEEDS = (BASE, "without radius gains", "radius gains in the last third")
"""Variations trained with `--seeds` seeds; the others with the first only."""

TOGETHER = {
    "with radius gains and without": (BASE, "without radius gains"),
    "half the resolution and all of it, without radius gains": (
        "without radius gains",
        "half the resolution, without radius gains",
    ),
}
"""Ensembles of the first seeds of several variations."""

LATE = ("attack_from", "reweigh_from", "radius_gain_from")
"""Options that name an epoch, which keeps its share of the epochs; below 1 they are that share."""

RADII = (0.0, 0.5, 1.0, 1.5)

OF_ACR = ("reweigh_from", "reweigh_every", "votes")
"""Options that `acr` has, and a variation by another method does not."""


def variations(options: argparse.Namespace) -> list[str]:
    return [name for name in VARIATIONS if name != options.arch]


def config_of(name: str, seed: int, options: argparse.Namespace) -> TrainConfig:
    """The training of one network, for no more passes than the record's recipe takes."""
    base = _in_epochs(BASE, seed, options, options.epochs)
    most = 1.001 * VARIATIONS[name][1].get("passes", 1.0) * _passes(base)
    tried = range(1, 8 * base.epochs)
    epochs = bisect.bisect(
        tried, most, key=lambda epochs: _passes(_in_epochs(name, seed, options, epochs))
    )
    return _in_epochs(name, seed, options, max(1, epochs))


def _passes(config: TrainConfig) -> float:
    return sum(map(config.passes_at, range(config.epochs)))


def _in_epochs(
    name: str, seed: int, options: argparse.Namespace, epochs: int | None
) -> TrainConfig:
    recipe, changes = VARIATIONS[name]
    fields = {key: own for key, own in read_recipe(recipe)[0].items() if key != "arch"}
    given = {"arch": options.arch, "sigma": options.sigma, "dataset": options.dataset}
    published = fields["epochs"]
    fields |= {"epochs": epochs or published, **given, **changes}
    fields.pop("passes", None)
    for late in LATE:
        if fields.get(late) is not None:
            share = fields[late] if fields[late] < 1 else fields[late] / published
            fields[late] = min(round(share * fields["epochs"]), fields["epochs"] - 1)
    if fields["method"] not in ("acr", "catrs"):
        fields = {key: own for key, own in fields.items() if key not in OF_ACR}
    return TrainConfig.from_dict(fields | {"seed": seed})


def folders_of(name: str, options: argparse.Namespace) -> list[Path]:
    seeds = options.seeds if name in MORE_SEEDS else 1
    place = options.out / f"sigma{options.sigma:.2f}" / re.sub(r"[^A-Za-z0-9]+", "-", name)
    return [place / f"seed{seed}" for seed in range(seeds)]


def train(options: argparse.Namespace) -> None:
    """Every variation in turn, until the time is over."""
    names = options.variations or variations(options)
    if options.at_once > 1:
        _train_in_processes(names, options)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = load_dataset(options.dataset, options.data_root)

    def stop(*_: object) -> None:
        raise TimeLimitReached

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    try:
        for name in names:
            outs = folders_of(name, options)
            configs = [config_of(name, seed, options) for seed in range(len(outs))]
            train_many(configs, dataset, outs, device=device, quiet=False)
            print(f"trained: {name}", flush=True)  # noqa: T201
    except TimeLimitReached:
        print("the time is over; the same command resumes", flush=True)  # noqa: T201
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _train_in_processes(names: Iterable[str], options: argparse.Namespace) -> None:
    """Each variation in a process of its own, which takes the next when it is done."""
    until = time.monotonic() + 60 * options.minutes
    left, lock = iter(names), threading.Lock()
    given = ["--sigma", str(options.sigma), "--dataset", options.dataset, "--arch", options.arch]
    given += ["--out", str(options.out), "--seeds", str(options.seeds), "--at-once", "1"]
    if options.data_root:
        given += ["--data-root", str(options.data_root)]
    if options.epochs:
        given += ["--epochs", str(options.epochs)]

    def work() -> None:
        while (minutes := (until - time.monotonic()) / 60) > 0:
            with lock:
                name = next(left, None)
            if name is None:
                return
            own = [*given, "--minutes", str(minutes), "--variation", name]
            # One that fails says so, and leaves the others alone.
            subprocess.run([sys.executable, __file__, "train", *own], check=False)

    workers = [threading.Thread(target=work) for _ in range(options.at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class Ablation:
    """Rows of the file, and what is needed to add to them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.scorer = options, Scorer(options)
        text = options.rows.read_text("utf-8") if options.rows.exists() else ""
        self.done = {
            (row["variation"], tuple(row["networks"])) for row in map(json.loads, text.splitlines())
        }
        self.base: np.ndarray | None = None

    def row(
        self,
        variation: str,
        folders: Sequence[Path],
        weights: Sequence[float] | None = None,
        **more: Any,
    ) -> None:
        """Certify the mean of some networks, and append its row."""
        networks = [load_members([folder]).fingerprint[:16] for folder in folders]
        if (variation, tuple(networks)) in self.done and variation != BASE:
            return
        for name, folder in zip(networks, folders, strict=True):
            if name not in self.scorer.logits:
                self.scorer.add(name, load_checkpoint(folder)[0])
        found = self.scorer.score(networks, weights, 1.0)
        radii = list(self.scorer.radii.values())[-1]
        self.base = radii if self.base is None else self.base
        apart = radii - self.base
        runs = [TrainingRun.read(folder) for folder in folders]
        row = {
            "variation": variation,
            "networks": networks,
            **found,
            "lead": float(apart.mean()),
            "half_width": 1.96 * float(apart.std(ddof=1)) / len(apart) ** 0.5,
            "n": self.options.n,
            "images": len(self.scorer.positions),
            "multiply_adds": sum(self._multiply_adds(folder) for folder in folders),
            "seconds_per_epoch": [
                statistics.median(epoch.seconds for epoch in run.metrics) for run in runs
            ],
            "seconds": [run.seconds for run in runs],
            "weights": weights and list(weights),
            **more,
            "config": dict(runs[0].config.content),
            "environment": describe_environment(),
        }
        lead = f"{row['lead']:+.4f} ± {row['half_width']:.4f}"
        print(f"{row['acr']:.4f} ({lead}) {variation}", flush=True)  # noqa: T201
        if (variation, tuple(networks)) not in self.done:
            with self.options.rows.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            self._keep_radii(" + ".join(networks) if weights is None else variation, radii)

    def _keep_radii(self, name: str, radii: np.ndarray) -> None:
        """Add the radius of each image to the file beside the rows."""
        kept = self.options.rows.with_suffix(".npz")
        found = dict(np.load(kept)) if kept.exists() else {}
        np.savez_compressed(kept, **{**found, name: radii.astype(np.float32)})

    def _multiply_adds(self, folder: Path) -> float:
        channels, height, width = self.scorer.images.shape[1:]
        return float(count_flops(load_checkpoint(folder)[0], (channels, height, width)))


def score(options: argparse.Namespace) -> None:
    ablation = Ablation(options)
    trained = {
        name: [folder for folder in folders_of(name, options) if is_finished(folder)]
        for name in variations(options)
    }
    for name in trained:
        if not trained[name]:
            continue
        if name == BASE or ablation.base is not None:
            ablation.row(name, trained[name][:1])
    if ablation.base is None:
        print(f"not yet trained: {BASE}", flush=True)  # noqa: T201
        return
    together = {
        f"{count} of {name}": trained[name][:count]
        for name in MORE_SEEDS
        for count in range(2, len(trained[name]) + 1)
    }
    for label, names in TOGETHER.items():
        if all(trained[name] for name in names):
            together[label] = [trained[name][0] for name in names]
    for label, folders in together.items():
        ablation.row(label, folders)
        for method in ("sgd", "acr"):
            ablation.row(f"{label}, weights by {method}", folders, solve(folders, method, options))


def solve(folders: Sequence[Path], method: str, options: argparse.Namespace) -> list[float]:
    """Weights on the images of the split that are not scored."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    split = load_dataset(options.dataset, options.data_root).weights
    scored = set(range(0, len(split), max(1, len(split) // options.images)))
    others = [place for place in range(len(split)) if place not in scored]
    solution = solve_weights(
        load_members(folders).to(device),
        split.images(others).to(device),
        split.labels[others].to(device),
        sigma=options.sigma,
        method=method,
        samples=options.samples,
    )
    return list(solution.weights)


def table(options: argparse.Namespace) -> None:
    """The rows of a file, in its order, with radii as 100,000 votes would give them."""
    rows = [json.loads(line) for line in options.rows.read_text("utf-8").splitlines()]
    kept = dict(np.load(options.rows.with_suffix(".npz")))
    columns = ["variation", "epochs", "ACR", *(f"at {radius:g}" for radius in RADII)]
    print(f"| {' | '.join(columns)} |\n| :--- |{' ---: |' * (len(columns) - 1)}")  # noqa: T201
    base: np.ndarray | None = None
    for row in rows:
        name = row["variation"] if row["weights"] else " + ".join(row["networks"])
        radii = expected_radii(kept[name], n=row["n"], sigma=row["config"]["sigma"])
        base = radii if base is None else base
        apart = radii - base
        width = 1.96 * float(apart.std(ddof=1)) / len(apart) ** 0.5
        lead = f" ({apart.mean():+.4f} ± {width:.4f})" if apart.any() else ""
        shares = [((radii > 0) & (radii >= radius)).mean() for radius in RADII]
        cells = [row["variation"], row["config"]["epochs"], f"{radii.mean():.4f}{lead}"]
        cells += [f"{100 * share:.1f}" for share in shares]
        print(f"| {' | '.join(map(str, cells))} |")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    own = verbs.add_parser("table")
    own.set_defaults(verb=table)
    own.add_argument("rows", type=Path)
    for verb in (train, score):
        own = verbs.add_parser(verb.__name__)
        own.set_defaults(verb=verb)
        own.add_argument("--sigma", type=float, required=True)
        own.add_argument("--data-root", type=Path)
        own.add_argument("--dataset", default="cifar10")
        own.add_argument("--arch", default="resnet20x2")
        own.add_argument("--out", type=Path, required=True)
        own.add_argument("--seeds", type=int, default=3)
        own.add_argument("--epochs", type=int)
        if verb is train:
            own.add_argument("--minutes", type=float, required=True)
            own.add_argument("--at-once", type=int, default=1)
            # Not `--only`: torch's compiler takes that of any program for a benchmark of its own,
            # and writes the name into Python code, where an apostrophe ends the string.
            own.add_argument(
                "--variation", dest="variations", action="append", choices=list(VARIATIONS)
            )
        else:
            own.add_argument("--rows", type=Path, required=True)
            own.add_argument("--images", type=int, default=1000)
            own.add_argument("--n", type=int, default=10_000)
            own.add_argument("--samples", type=int, default=400)
    options = parser.parse_args()
    options.verb(options)


if __name__ == "__main__":
    main()
