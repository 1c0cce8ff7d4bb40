"""Where a GPU's time goes in a training step, kernel by kernel.

    python benchmarks/profile_training.py --arch resnet110 --batch-size 256 --out FILE
    python benchmarks/profile_training.py --arch resnet20 --method macer --batch-size 64 --out FILE
    python benchmarks/profile_training.py --arch resnet20x4 --optimizer muon --copies 2 \\
        --method consistency --search --out FILE

Steps on random pixels, as `sween train` takes them, after those that compile. Of every kernel its
share of the time; kernels of torch's compiler are named after what they compute. --search lets
cuDNN try its kernels for each convolution, which `sween train` does not.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from training_speed import synthetic_cifar

from sween.run_folder import describe_environment, write_json
from sween.training import OBJECTIVES, TrainConfig
from sween.training.trainer import Trainer

WARM_UP, TIMED, PROFILED = 20, 40, 5
"""Steps before the clock, by the clock, and under the profiler."""

MOST = 60
"""Kernels that are listed; the others are summed up."""


def profiled(trainer: Trainer) -> dict[str, Any]:
    """Milliseconds of a step by the clock and in kernels, and the kernels by their time."""
    steps = trainer.run()
    for _ in range(WARM_UP):
        next(steps)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(TIMED):
        next(steps)
    torch.cuda.synchronize()
    each = (time.perf_counter() - began) / TIMED
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(PROFILED):
            next(steps)
        torch.cuda.synchronize()
    steps.close()
    found: dict[str, list[float]] = {}
    for event in recorded.events() or ():
        if event.device_type.name == "CUDA":
            found.setdefault(event.name, []).append(event.device_time / 1000)
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    rows = [
        {
            "kernel": name,
            "launches": len(times) / PROFILED,
            "milliseconds": sum(times) / PROFILED,
            "microseconds_each": 1000 * sum(times) / len(times),
        }
        for name, times in ordered
    ]
    return {
        "step": 1000 * each,
        "kernels": sum(row["milliseconds"] for row in rows),
        "launches": sum(row["launches"] for row in rows),
        "listed": rows[:MOST],
        "others": sum(row["milliseconds"] for row in rows[MOST:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default="resnet110")
    parser.add_argument("--method", choices=sorted(OBJECTIVES), default="gaussian")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--optimizer", choices=["sgd", "muon"], default="sgd")
    parser.add_argument("--copies", type=int)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = TrainConfig(
        dataset="cifar10",
        arch=options.arch,
        method=options.method,
        sigma=0.5,
        epochs=1,
        batch_size=options.batch_size,
        optimizer=options.optimizer,
        copies=options.copies,
        average=0.999,
        nesterov=True,
    )
    torch.backends.cudnn.benchmark = options.search
    device = torch.device("cuda")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, synthetic_cifar(), Path(folder) / "run", device=device)
        found = profiled(trainer)
    sys.stdout.write(
        f"{options.arch}, {options.method}, batch {options.batch_size}: {found['step']:.2f} ms a "
        f"step, {found['kernels']:.2f} ms in {found['launches']:.0f} kernels\n"
    )
    for row in found["listed"]:
        sys.stdout.write(
            f"{row['milliseconds']:8.3f} ms {row['launches']:6.0f} x "
            f"{row['microseconds_each']:7.1f} us  {row['kernel'][:110]}\n"
        )
    if options.out is not None:
        settings = {name: str(value) for name, value in vars(options).items() if name != "out"}
        content = settings | found | {"environment": describe_environment()}
        write_json(options.out, content)


if __name__ == "__main__":
    main()
