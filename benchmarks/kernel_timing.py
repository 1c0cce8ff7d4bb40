"""The time of each stage of the CIFAR kernels alone, for the benchmarks that vary them.

Random weights and images: speed does not depend on them.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from sween.bench import calibrate_batch_norm
from sween.cuda import Argument
from sween.engine.kernels import (
    INTEGER_WIDTHS,
    WIDTHS,
    FusedQuantizedResNet,
    FusedResNet,
    IntegerShape,
    QuantizedResNet,
    WideIntegerShape,
    WideQuantizedResNet,
    is_cifar_resnet,
    shape_for,
)
from sween.engine.kernels.cifar_resnet import Launch
from sween.engine.kernels.packing import width_of
from sween.engine.kernels.shape import Shape
from sween.models import ARCHITECTURES, count_flops, create_model
from sween.models.cifar_resnet import CifarResNet
from sween.run_folder import describe_environment, write_json

IMAGE_SHAPE = (3, 32, 32)

PRECISIONS = ("float16", "int8")

Forms = Callable[[Shape], Mapping[str, Launch]]
"""The forms of the kernels to be timed, by name, for the shape that runs a network."""


def shape_of(model: nn.Module, precision: str) -> Shape | None:
    """The kernels that run a network; None if there are none."""
    widths = INTEGER_WIDTHS if precision == "int8" else WIDTHS
    if not is_cifar_resnet(model, IMAGE_SHAPE, widths=widths):
        return None
    if precision == "float16":
        return shape_for(model)
    assert isinstance(model, nn.Sequential)
    network = model[1]
    assert isinstance(network, CifarResNet)
    width = width_of(network)
    return IntegerShape() if width == 1 else WideIntegerShape(width=width)


@dataclasses.dataclass(frozen=True)
class Timing:
    """One network under one form of the kernels."""

    arch: str
    form: str
    stage_milliseconds: dict[int, float]
    evaluations_per_second: float
    flops_per_second: float
    outputs: torch.Tensor

    def describe(self) -> dict[str, object]:
        """For a file, without the outputs."""
        return {
            "arch": self.arch,
            "evaluations_per_second": self.evaluations_per_second,
            "flops_per_second": self.flops_per_second,
            "stage_milliseconds": self.stage_milliseconds,
        }

    def __str__(self) -> str:
        stages = ", ".join(f"{value:.3f}" for value in self.stage_milliseconds.values())
        return (
            f"{self.arch} {self.form}: {self.evaluations_per_second:,.0f} a second, "
            f"{self.flops_per_second / 1e12:.0f} TFLOP/s; stages {stages} ms"
        )


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


def fused_network(model: nn.Module, launch: Launch, device: torch.device) -> FusedResNet:
    """A network on the kernels of this launcher's shape."""
    if isinstance(launch.shape, WideIntegerShape):
        return WideQuantizedResNet(QuantizedResNet(model), launch, device)
    if isinstance(launch.shape, IntegerShape):
        return FusedQuantizedResNet(QuantizedResNet(model), launch, device)
    return FusedResNet(model, launch)


def options_of(
    description: str | None, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """The command line of a benchmark of the kernels."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--arch", action="append", choices=[*ARCHITECTURES], metavar="NAME")
    parser.add_argument("--precision", choices=PRECISIONS, default="float16")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    options.arch = options.arch or ["resnet20"]
    for arch in options.arch:  # before any is timed
        if shape_of(_network(arch), options.precision) is None:
            known = "one of the CIFAR ResNets, those with four times the channels in int8 only"
            parser.error(f"--arch: expected {known}, got {arch} in {options.precision}: there are "
                         "no custom kernels for it; use sween bench")  # fmt: skip
    return options


def _network(arch: str) -> nn.Module:
    shape = ARCHITECTURES[arch].image_shape or IMAGE_SHAPE
    return create_model(arch, num_classes=10, image_shape=shape).eval()


@torch.inference_mode()
def timings(options: argparse.Namespace, forms: Forms) -> Iterator[Timing]:
    """Every network under every form of its kernels; prints each."""
    images = torch.rand(options.rows, *IMAGE_SHAPE, device="cuda")
    for arch in options.arch:
        model = calibrate_batch_norm(_network(arch), IMAGE_SHAPE).to(images.device)
        flops = 2 * count_flops(model, IMAGE_SHAPE)
        shape = shape_of(model, options.precision)
        assert shape is not None
        for form, launch in forms(shape).items():
            timed = Timed(launch)
            fused = fused_network(model, timed, images.device)
            outputs = fused(images)
            timed.milliseconds()
            for _ in range(options.repeats):
                fused(images)
            stages = timed.milliseconds()
            rate = 1000 * options.rows / sum(stages.values())
            timing = Timing(arch, form, stages, rate, rate * flops, outputs)
            print(timing, flush=True)  # noqa: T201
            yield timing


def write_results(options: argparse.Namespace, results: Sequence[Mapping[str, object]]) -> None:
    """Write the results, with the machine they were measured on."""
    if options.out is not None:
        content = {"rows": options.rows, "precision": options.precision, "results": results}
        write_json(options.out, {**content, "environment": describe_environment()})
