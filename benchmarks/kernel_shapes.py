"""Evaluations a second of the CIFAR kernels alone, for each way to cut their blocks.

    python benchmarks/kernel_shapes.py --arch resnet20 --arch resnet110 --out FILE

Random weights and images: speed does not depend on them. Stage by stage, since each is limited by
something else.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from sween.bench import settled
from sween.kernels import FusedResNet, launcher
from sween.kernels.cifar_resnet import Argument, Launch
from sween.kernels.shape import Shape
from sween.models import count_flops, create_model
from sween.runs import describe_environment, write_json


class Timed:
    """A launcher that notes the milliseconds of each stage."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self.shape = launch, launch.shape
        self.events: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        before, after = (_event() for _ in range(2))
        before.record()
        self._launch(stage, blocks, arguments)
        after.record()
        self.events.append((stage, before, after))

    def milliseconds(self) -> dict[int, float]:
        """The mean of each stage since the last call."""
        torch.cuda.synchronize()
        spent: dict[int, list[float]] = {}
        for stage, before, after in self.events:
            spent.setdefault(stage, []).append(before.elapsed_time(after))
        self.events = []
        return {stage: sum(times) / len(times) for stage, times in spent.items()}


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda")
    images = torch.rand(options.rows, 3, 32, 32, device=device)
    results = []
    for arch in options.arch or ["resnet20"]:
        model = create_model(arch, num_classes=10, image_shape=(3, 32, 32))
        model = settled(model, (3, 32, 32)).to(device)
        flops = 2 * count_flops(model, (3, 32, 32))
        known: torch.Tensor | None = None
        for rows, in_block in itertools.product((2, 4), (2, 4)):
            timed = Timed(launcher(device, Shape(rows, in_block)))
            fused = FusedResNet(model, timed)
            outputs = fused(images)
            known = outputs if known is None else known
            timed.milliseconds()
            for _ in range(options.repeats):
                fused(images)
            stages = timed.milliseconds()
            rate = 1000 * options.rows / sum(stages.values())
            result = {
                "arch": arch,
                "shape": {"rows": rows, "images": in_block},
                "evaluations_per_second": rate,
                "flops_per_second": rate * flops,
                "stage_milliseconds": stages,
                "same_outputs": bool(torch.isfinite(outputs).all()) and torch.equal(outputs, known),
            }
            results.append(result)
            print(  # noqa: T201
                f"{arch} rows {rows} images {in_block}: {rate:,.0f} a second, "
                f"{rate * flops / 1e12:.0f} TFLOP/s; stages "
                + ", ".join(f"{value:.3f}" for value in stages.values())
                + f" ms; same outputs {result['same_outputs']}",
                flush=True,
            )
    if options.out is not None:
        content = {"rows": options.rows, "results": results, "environment": describe_environment()}
        write_json(options.out, content)


if __name__ == "__main__":
    main()
