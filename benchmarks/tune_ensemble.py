"""Variations of a recipe, judged by what several seeds of each are worth as an ensemble.

    python benchmarks/tune_ensemble.py train --config configs/fast/gaussian-deep.toml \\
        --arch resnet50 --sigma 0.5 --epochs 70 --seed 0 --seed 1 \\
        --try recipe --try weight_decay=2e-3 --data-root DIR --out RUNS
    python benchmarks/tune_ensemble.py score RUNS --sigma 0.5 --beside ENSEMBLE \\
        --partner resnet80 --partner resnet110 --data-root DIR --out rows.jsonl
    python benchmarks/tune_ensemble.py table rows.npz --partner resnet80 --partner resnet110
    python benchmarks/tune_ensemble.py mirror ENSEMBLE --sigma 0.5 --data-root DIR --out rows.jsonl

All on the weight-solving split, never on test images. `score` evaluates every network once, on the
same noisy copies, and keeps its outputs: one row for each network, for the mean of each variation's
networks, and for that mean together with the partners of an ensemble trained before, all weighted
equally, and for each --mean A+B+... of networks by the names of their folders, or of members of
that ensemble. With --until it waits for more networks until that file exists. The radii of
all images go into rows.npz, from which `table` compares each variation with the recipe. `mirror`
asks what an ensemble gains if its members also see the mirror image of each noisy image, which
needs no training: each member, the first two, ..., all of them, alone and with their mirrored
selves. A row's `expected_acr` is that of `expected_radii`.
"""

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trial_networks  # noqa: F401  # registers networks by name
from torch import nn
from tune_recipe import parse_try

from sween.bounds.radius import noise_level, radius_cohen
from sween.data import load_dataset
from sween.engine.forward import FixedShapeForward, default_forward_rows, probe_batch
from sween.engine.member import Member
from sween.engine.preparation import Preparation
from sween.models import load_checkpoint
from sween.run_folder import describe_environment
from sween.runs import TrainingRun
from sween.training import TrainConfig, train_many
from sween.training.recipes import read_recipe
from sween.zoo import load

N0, ALPHA = 100, 0.001
VOTES = 100_000
"""For which `expected_radii` are."""

CHUNK = 50
"""Images whose noisy copies are held at once."""


def folder_of(text: str, seed: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', text)}-seed{seed}"


def train(options: argparse.Namespace) -> None:
    """All tries and seeds at once, each into its own folder."""
    recipe = {key: value for key, value in read_recipe(options.config)[0].items() if key != "arch"}
    given = {"sigma": options.sigma, "arch": options.arch, "epochs": options.epochs}
    configs, outs = [], []
    for text in options.tries:
        for seed in options.seeds:
            configs.append(TrainConfig(**{**recipe, **given, **parse_try(text), "seed": seed}))
            outs.append(options.out / folder_of(text, seed))
            outs[-1].mkdir(parents=True, exist_ok=True)
            (outs[-1] / "try.txt").write_text(text, encoding="utf-8")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = load_dataset(recipe["dataset"], options.data_root)
    train_many(configs, dataset, outs, device=device, quiet=True)


def expected_radii(radii: np.ndarray, *, n: int, sigma: float) -> np.ndarray:
    """Radii for `VOTES` votes of the same shares as the `n` votes that gave these; 0 stays 0."""
    every = np.asarray(radius_cohen(np.arange(n + 1), n, alpha=ALPHA, sigma=sigma))
    # The nearest one: kept radii are float32.
    counts = np.searchsorted((every[1:] + every[:-1]) / 2, radii)
    many = np.rint(counts / n * VOTES).astype(np.int64)
    found = np.asarray(radius_cohen(many, VOTES, alpha=ALPHA, sigma=sigma))
    return np.where(radii > 0, found, 0.0)


class Scorer:
    """Outputs of networks on the same noisy copies, and the ACR of any mean of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dataset = load_dataset(options.dataset, options.data_root)
        split = dataset.weights
        self.positions = list(range(0, len(split), max(1, len(split) // options.images)))
        self.images = split.images(self.positions).to(self.device)
        self.labels = split.labels[self.positions].numpy()
        self.sigma = noise_level(options.sigma)
        rows = default_forward_rows(self.device, self.images[0].numel())
        self.num_classes = dataset.num_classes
        self.forward = FixedShapeForward(self.num_classes, rows)
        self.logits: dict[str, torch.Tensor] = {}
        self.radii: dict[str, np.ndarray] = {}

    @torch.inference_mode()
    def add(self, name: str, module: nn.Module) -> None:
        """Evaluate one network on N0 + n noisy copies of each image."""
        member = Member(module.to(self.device).eval(), Preparation())
        member.refresh(probe_batch(self.images[0], self.forward.rows, self.sigma))
        outputs = []
        for block, images in enumerate(torch.split(self.images, CHUNK)):
            generator = torch.Generator(self.device).manual_seed(block)
            shape = (len(images), N0 + self.options.n, *images.shape[1:])
            noisy = torch.randn(shape, generator=generator, device=self.device)
            noisy.mul_(self.sigma).add_(images[:, None])
            logits = self.forward(member, noisy.flatten(0, 1))
            outputs.append(logits.half().view(len(images), N0 + self.options.n, -1))
        self.logits[name] = torch.cat(outputs)

    @torch.inference_mode()
    def score(
        self, names: Sequence[str], weights: Sequence[float] | None, temperature: float
    ) -> dict[str, Any]:
        """CERTIFY by the mean probability of some networks, the first N0 votes selecting."""
        shares = weights or [1 / len(names)] * len(names)
        votes = []
        for start in range(0, len(self.images), CHUNK):
            mean: Any = 0
            for name, share in zip(names, shares, strict=True):
                some = self.logits[name][start : start + CHUNK]
                mean = mean + share * torch.softmax(some.float() / temperature, dim=2)
            votes.append(mean.argmax(dim=2))
        cast = nn.functional.one_hot(torch.cat(votes), self.num_classes)
        answers = cast[:, :N0].sum(dim=1).argmax(dim=1)
        counts = cast[:, N0:].sum(dim=1).gather(1, answers[:, None])[:, 0].cpu().numpy()
        right = answers.cpu().numpy() == self.labels
        radii = radius_cohen(counts, self.options.n, alpha=ALPHA, sigma=self.options.sigma) * right
        ways = [" + ".join(names), *(["own weights"] if weights else [])]
        self.radii["; ".join([*ways, f"T={temperature}"] if temperature != 1 else ways)] = radii
        expected = expected_radii(radii, n=self.options.n, sigma=self.options.sigma)
        return {
            "acr": float(radii.mean()),
            "expected_acr": float(expected.mean()),
            "certified_accuracy": float((radii > 0).mean()),
            "accuracy_at_1": float((radii >= 1).mean()),
            "vote_share": float(counts[right].sum() / counts.size / self.options.n),
        }

    def write(self, kind: str, names: Sequence[str], **more: Any) -> None:
        row = {
            "kind": kind,
            "networks": list(names),
            **self.score(names, more.get("weights"), more.get("temperature", 1.0)),
            "n": self.options.n,
            "images": len(self.positions),
            **more,
            "environment": describe_environment(),
        }
        print(f"{row['acr']:.4f} {kind} {' + '.join(names)}", flush=True)  # noqa: T201
        with self.options.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        np.savez_compressed(self.options.out.with_suffix(".npz"), **self.radii)  # type: ignore[arg-type]


def score_beside(scorer: Scorer, options: argparse.Namespace) -> None:
    """The ensemble trained before: each member, the partners, equal weights and its own."""
    beside = load(options.beside)
    names = beside.member_names
    for name, module in zip(names, beside.members, strict=True):
        scorer.add(name, module)
        scorer.write("network", [name])
    scorer.write("partners", options.partners)
    scorer.write("equal weights", names)
    for temperature in (1.0, 0.5, 2.0):
        own = {"weights": beside.weights.tolist(), "temperature": temperature}
        scorer.write("own weights", names, **own)


def score(options: argparse.Namespace) -> None:
    scorer = Scorer(options)
    if options.beside:
        score_beside(scorer, options)
    done: dict[str, list[str]] = {}
    while True:
        last_look = options.until is None or options.until.exists()
        for path in sorted(options.runs.glob("*/model.safetensors")):
            run, text = path.parent, (path.parent / "try.txt").read_text(encoding="utf-8")
            if run.name in scorer.logits:
                continue
            module, _ = load_checkpoint(run)
            trained = TrainingRun.read(run)
            scorer.add(run.name, module)
            scorer.write(
                "network",
                [run.name],
                **{"try": text, "last_epoch": dataclasses.asdict(trained.metrics[-1])},
                config=dict(trained.config.content),
            )
            done.setdefault(text, []).append(run.name)
            if len(done[text]) > 1:
                scorer.write("together", done[text], **{"try": text})
                if options.partners:
                    both = [*done[text], *options.partners]
                    scorer.write("with partners", both, **{"try": text})
        if last_look:
            break
        time.sleep(2)
    for names in options.means:
        scorer.write("mean", names.split("+"))


class Mirrored(nn.Module):
    """A network that sees each noisy image in a mirror."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(images.flip(3))
        return logits


def mirror(options: argparse.Namespace) -> None:
    scorer, ensemble = Scorer(options), load(options.ensemble)
    names = list(ensemble.member_names)
    for count, (name, module) in enumerate(zip(names, ensemble.members, strict=True), start=1):
        scorer.add(name, module)
        scorer.add(f"{name} mirrored", Mirrored(module))
        first = names[:count]
        if count > 1:
            scorer.write("network", [name])
        scorer.write("mirrored", [f"{name} mirrored"])
        scorer.write("together" if count > 1 else "network", first)
        scorer.write("with mirrored", [*first, *(f"{each} mirrored" for each in first)])


def table(options: argparse.Namespace) -> None:
    """Each variation compared with the recipe, with normal 95% intervals over images."""
    radii = dict(np.load(options.radii))
    partners = "".join(f" + {name}" for name in options.partners)
    base: dict[str, np.ndarray] = {}
    pairs = [name for name in radii if name.endswith("-seed1") and " + " in name]
    pairs.sort(key=lambda name: not name.startswith("recipe-"))
    for pair in pairs:
        networks = pair.split(" + ")
        alone = sum(radii[name] for name in networks) / len(networks)
        found = {
            "alone": alone,
            "together": radii[pair],
            "gain": radii[pair] - alone,
            "with partners": radii[pair + partners],
        }
        base = base or found
        cells = []
        for what, own in found.items():
            apart = own - base[what]
            width = 1.96 * apart.std(ddof=1) / len(apart) ** 0.5
            cells.append(f"{what} {own.mean():.4f} ({apart.mean():+.4f} ± {width:.4f})")
        print(f"{networks[0].removesuffix('-seed0')}: {'; '.join(cells)}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    own = verbs.add_parser("table")
    own.set_defaults(verb=table)
    own.add_argument("radii", type=Path)
    own.add_argument("--partner", dest="partners", action="append", default=[])
    for verb in (train, score, mirror):
        own = verbs.add_parser(verb.__name__)
        own.set_defaults(verb=verb)
        own.add_argument("--sigma", type=float, required=True)
        own.add_argument("--data-root", type=Path, required=True)
        own.add_argument("--out", type=Path, required=True)
        if verb is train:
            own.add_argument("--config", type=Path, required=True)
            own.add_argument("--arch", required=True)
            own.add_argument("--epochs", type=int, required=True)
            own.add_argument("--seed", dest="seeds", type=int, action="append", required=True)
            own.add_argument("--try", dest="tries", action="append", required=True)
            continue
        own.add_argument("--images", type=int, default=2000)
        own.add_argument("--n", type=int, default=2000)
        own.add_argument("--dataset", default="cifar10")
        if verb is mirror:
            own.add_argument("ensemble")
        else:
            own.add_argument("runs", type=Path)
            own.add_argument("--beside")
            own.add_argument("--partner", dest="partners", action="append", default=[])
            own.add_argument("--until", type=Path)
            own.add_argument("--mean", dest="means", action="append", default=[])
    options = parser.parse_args()
    options.verb(options)


if __name__ == "__main__":
    main()
