"""How fast this machine does each kind of step of `sween reproduce`, on a small plan.

    python benchmarks/reproduce_speed.py --out results/reproduce-speed/cpu.json

The network is ResNet-20; the images have the shape of CIFAR-10, random pixels and mostly one
class, which does not matter for speed.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path

import torch
from training_speed import synthetic_cifar

from sween.data import Dataset
from sween.reproduce import Step, Workspace, read_plan, steps_of
from sween.run_folder import describe_environment, write_json

RECIPE = 'dataset = "cifar10"\nepochs = 3\nbatch_size = 100\n'
PLAN = """
title = "Speed"
table = "attacks"
dataset = "cifar10"
sigmas = [0.5]

[recipes]
fast = "{recipe}"

[[candidate]]
arch = "resnet20"

[[ensemble]]
name = "alone"
members = ["resnet20"]

[weigh]
samples = 4

[certify]
indices = "0:4"
n = 2000

[attack]
models = ["alone"]
eps = [0.1]
indices = "0:4"
samples = 8
n = 100
batch_size = 4
"""


def mostly_one_class(dataset: Dataset) -> Dataset:
    """All but ten training images of one class: learned at once, and what is right is attacked."""
    splits = {}
    for name in ("train", "weights", "test"):
        split = getattr(dataset, name)
        labels = torch.zeros_like(split.labels)
        if name != "test":
            labels[:10] = torch.arange(10)
        splits[name] = dataclasses.replace(split, labels=labels)
    return dataclasses.replace(dataset, **splits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipe.toml").write_text(RECIPE)
        (folder / "plan.toml").write_text(PLAN.format(recipe=folder / "recipe.toml"))
        space = Workspace(
            read_plan(folder / "plan.toml"), recipe="fast", out=folder / "out", devices=(device,)
        )
        space.dataset = mostly_one_class(synthetic_cifar(options.images))
        rows = [measure(step) for step in steps_of(space)]
    write_json(
        options.out,
        {"device": device.type, "rows": rows, "environment": describe_environment()},
    )


def measure(step: Step) -> dict[str, object]:
    """Carry out one step: what kind it is, its multiply-adds and its seconds."""
    step.run()
    work = step.work()
    print(f"{step.name}: {work.done / work.seconds:.3g} multiply-adds a second")  # noqa: T201
    return {"kind": work.kind, "multiply_adds": work.done, "seconds": work.seconds}


if __name__ == "__main__":
    main()
