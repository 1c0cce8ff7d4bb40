"""What of the paper was not measured, and how long it would take by the rates of what was."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tables import markdown

from sween.data import Dataset
from sween.reproduce import Rates, Step, Workspace, read_plan, steps_of

RUNS = {
    "identical": "{dataset}-identical-seeds-gaussian-sigma{sigma:.2f}",
    "macer": "{dataset}-sween6-macer-sigma{sigma:.2f}",
    "imagenette": "imagenette-sween3-gaussian-sigma{sigma:.2f}",
}
"""The folder of results/ for each plan whose noise levels are not all measured."""

SIZES = {
    "cifar10": ((3, 32, 32), 48_000, 2_000, 10_000),
    "image_folder": ((3, 128, 128), 9_091, 378, 3_925),
}
"""Image shape, and training, weight-solving and test images; image folders are Imagenette."""


def left_out(results: Path, dataset: str) -> str:
    """Plans and noise levels without a folder in results/, with minutes on one GPU."""
    lines = []
    for target, pattern in RUNS.items():
        for sigma in sorted(read_plan(target).sigmas):
            if (results / pattern.format(dataset=dataset, sigma=sigma)).is_dir():
                continue
            steps = _steps(target, sigma)
            kinds = {
                kind: _minutes(step for step in steps if step.work().kind == kind)
                for kind in ("train", "weigh", "certify")
            }
            cells = [f"{minutes:.0f}" for minutes in kinds.values()]
            whole = f"{sum(kinds.values()):.0f}"
            lines.append([f"`{target}`", f"{sigma:.2f}", *cells, whole])
    head = ["target", "σ", "training, minutes", "weights", "certification", "in all"]
    return markdown(head, 1, lines)


def _steps(target: str, sigma: float) -> list[Step]:
    plan = read_plan(target).at(recipe="fast", sigmas=[sigma])
    space = Workspace(plan, recipe="fast", out="nothing")
    shape, *counts = SIZES[plan.dataset]
    names = ("train", "weights", "test")
    splits = {name: range(count) for name, count in zip(names, counts, strict=True)}
    # Sizes are all that estimates need; the data itself may not be there.
    space.dataset = cast(Dataset, SimpleNamespace(image_shape=shape, num_classes=10, **splits))
    return steps_of(space)


def _minutes(steps: Iterator[Step]) -> float:
    rates = Rates("cuda")
    return sum(rates.seconds_left(step.work()) for step in steps) / 60
