"""Training options tried on a small stand-in for CIFAR-10, on a CPU, before GPU time is spent.

    python benchmarks/small_stand_in.py train --try recipe --try regulariser=20 --seed 0 --seed 1 \\
        --epochs 60 --data-root DIR --out RUNS
    python benchmarks/small_stand_in.py score RUNS --data-root DIR --out rows.jsonl

CIFAR-10's images averaged to 16x16 pixels, 7,680 training images, a network of 24 and 48 channels,
consistency training unless a try says otherwise. `score` certifies every network, all
seeds of a try together, and for every two tries the first network of one with the second of the
other, on 700 other training images, with the same noise for all. Distances halve with the side of
an image: sigma 0.25 stands for 0.50. With --side 32 the images are whole, and the noise is 0.50;
with --trained 16640 some 16,000 images are trained on, and a try names its network, such as
`arch="small_stand_in:full"` and `arch="small_stand_in:half"`.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from tune_ensemble import Scorer, folder_of
from tune_recipe import parse_try

import sween
from sween.data import Dataset, as_dataset, load_dataset
from sween.models import load_checkpoint
from sween.models.cifar_resnet import BasicBlock, initialise
from sween.models.normalize import Normalize
from sween.runs import TrainingRun
from sween.training import TrainConfig, train_many

HELD_OUT = range(40_000, 40_700)

RECIPE = {
    "arch": "small_stand_in:network",
    "method": "consistency",
    "regulariser": 10.0,
    "batch_size": 128,
    "learning_rate": 0.1,
    "weight_decay": 5e-4,
    "decay_norms": False,
    "schedule": "one-cycle",
    "warmup": 0.2,
    "average": 0.99,
}


class Network(nn.Module):
    """Two stages of two residual blocks."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.normalize = Normalize((0.5,) * 3, (0.25,) * 3)
        self.conv = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(24)
        self.blocks = nn.Sequential(
            BasicBlock(24, 24, 1), BasicBlock(24, 24, 1), BasicBlock(24, 48, 2),
            BasicBlock(48, 48, 1),
        )  # fmt: skip
        self.linear = nn.Linear(48, num_classes)
        initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.blocks(functional.relu(self.norm(self.conv(self.normalize(x)))))
        logits: torch.Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits


def network(num_classes: int) -> nn.Module:
    return Network(num_classes)


class Stages(nn.Module):
    """Stages of residual blocks; each but the first halves the side of its input."""

    def __init__(self, stem: nn.Conv2d, channels: Sequence[int], blocks: int, classes: int) -> None:
        super().__init__()
        self.normalize = Normalize((0.5,) * 3, (0.25,) * 3)
        self.conv, self.norm = stem, nn.BatchNorm2d(channels[0])
        inside, parts = channels[0], list[nn.Module]()
        for stage, outside in enumerate(channels):
            parts.append(BasicBlock(inside, outside, 2 if stage else 1))
            parts += [BasicBlock(outside, outside, 1) for _ in range(blocks - 1)]
            inside = outside
        self.blocks, self.linear = nn.Sequential(*parts), nn.Linear(inside, classes)
        initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Trained as on a GPU, in bfloat16 and channels-last, which is also faster on many CPUs.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.training):
            pixels = self.normalize(x).contiguous(memory_format=torch.channels_last)
            out = self.blocks(functional.relu(self.norm(self.conv(pixels))))
            logits: torch.Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits.float()


def full(num_classes: int) -> nn.Module:
    """ResNet-20: 16 channels at full resolution, 32 at half of it, 64 at a quarter."""
    return Stages(nn.Conv2d(3, 16, 3, padding=1, bias=False), (16, 32, 64), 3, num_classes)


def half(num_classes: int) -> nn.Module:
    """As many operations at half of the resolution, with twice the channels."""
    return _from_patches(32, 2, num_classes)


def half_narrow(num_classes: int) -> nn.Module:
    """As many channels and parameters as `full` at half of the resolution, for a quarter."""
    return _from_patches(16, 2, num_classes)


def quarter(num_classes: int) -> nn.Module:
    """As many operations at a quarter of the resolution, with four times the channels."""
    return _from_patches(64, 4, num_classes)


def half_two_stages(num_classes: int) -> nn.Module:
    """As many operations at half of the resolution and a quarter of it alone."""
    stem = nn.Conv2d(3, 48, 4, 2, padding=1, bias=False)
    return Stages(stem, (48, 96), 2, num_classes)


def _from_patches(channels: int, stride: int, num_classes: int) -> nn.Module:
    """Three stages that double their channels, the first on patches that overlap by half."""
    stem = nn.Conv2d(3, channels, 2 * stride, stride, padding=stride // 2, bias=False)
    return Stages(stem, (channels, 2 * channels, 4 * channels), 3, num_classes)


def register(options: argparse.Namespace) -> None:
    """Make the stand-in known to this process."""
    root = options.data_root  # which `score` clears

    def load() -> Dataset:
        cifar = load_dataset("cifar10", root).train
        parts = []
        for positions in (range(options.trained), HELD_OUT):
            images = cifar.images(list(positions))
            small = functional.avg_pool2d(images, 32 // options.side)
            parts.append((small, cifar.labels[list(positions)]))
        padding = options.side // 8
        made = as_dataset(
            *parts, name=options.dataset, augmentation="crop-flip", crop_padding=padding
        )
        # The scored images take the place of the part of the others that is held out.
        return dataclasses.replace(made, weights=made.test)

    sween.register_dataset(options.dataset, load)


def train(options: argparse.Namespace) -> None:
    """One after the other on a CPU; those that are done are left out."""
    dataset = load_dataset(options.dataset)
    given = {"dataset": options.dataset, "sigma": options.sigma, "epochs": options.epochs}
    for text, seed in itertools.product(options.tries, options.seeds):
        out = options.out / folder_of(text, seed)
        out.mkdir(parents=True, exist_ok=True)
        (out / "try.txt").write_text(text, encoding="utf-8")
        config = TrainConfig(**{**RECIPE, **given, **parse_try(text), "seed": seed})
        train_many([config], dataset, [out], device=torch.device("cpu"), quiet=True)
        seconds = [row.seconds for row in TrainingRun.read(out).metrics]
        print(f"{text} seed {seed}: {sum(seconds):.0f} s", flush=True)  # noqa: T201


def score(options: argparse.Namespace) -> None:
    scorer, tries = Scorer(options), dict[str, list[str]]()
    for path in sorted(options.runs.glob("*/model.safetensors")):
        run, text = path.parent, (path.parent / "try.txt").read_text(encoding="utf-8")
        content = dict(TrainingRun.read(run).config.content)
        module, _ = load_checkpoint(run, arch=content["arch"])
        scorer.add(run.name, module)
        scorer.write("network", [run.name], **{"try": text}, config=content)
        tries.setdefault(text, []).append(run.name)
    for names in tries.values():
        if len(names) > 1:
            scorer.write("together", names)
    for one, other in itertools.combinations(tries.values(), 2):
        if len(one) > 1 and len(other) > 1:
            scorer.write("of two tries", [one[0], other[1]])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("train", "score"):
        own = steps.add_parser(name)
        own.add_argument("--data-root", type=Path, required=True)
        own.add_argument("--out", type=Path, required=True)
        own.add_argument("--side", type=int, choices=(16, 32), default=16)
        own.add_argument("--trained", type=int, default=8_000)
        if name == "train":
            own.add_argument("--epochs", type=int, default=60)
            own.add_argument("--seed", dest="seeds", type=int, action="append", required=True)
            own.add_argument("--try", dest="tries", action="append", required=True)
        else:
            own.add_argument("runs", type=Path)
            own.add_argument("--images", type=int, default=len(HELD_OUT))
            own.add_argument("--n", type=int, default=2000)
    options = parser.parse_args(arguments)
    options.sigma, options.dataset = options.side / 64, f"cifar{options.side}"
    register(options)
    if options.step == "train":
        train(options)
    else:
        # By its name the registered data set is found without its files.
        options.data_root = None
        score(options)


if __name__ == "__main__":
    main()
