"""Certification speed on this machine: sween, the published loop, ART, and the arithmetic's limit.

    python benchmarks/certification_speed.py --arch resnet20 --device cpu --out FILE

ART (pip install adversarial-robustness-toolbox) is measured where it is installed, at its best of
several batch sizes, right after the other two, which take turns. The limit is a large product of
matrices in the arithmetic that votes.
"""

import argparse
import dataclasses
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sween.bench import measure, settled, to_table
from sween.models import count_flops, create_model
from sween.runs import describe_environment, write_json

SHAPE = (3, 32, 32)
SIGMA = 0.5
ART_BATCHES = (16, 32, 64, 128, 256, 512, 1000)


def art_rates(model: torch.nn.Module, device: torch.device, samples: int) -> dict[int, float]:
    """Samples a second of ART's certify at each batch size; empty where ART is not installed."""
    if importlib.util.find_spec("art") is None:
        return {}
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    smoothed = PyTorchRandomizedSmoothing(
        model=model,
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=SHAPE,
        nb_classes=10,
        device_type="gpu" if device.type == "cuda" else "cpu",
        sample_size=100,
        scale=SIGMA,
        alpha=0.001,
    )
    image = np.full((1, *SHAPE), 0.5, dtype=np.float32)
    rates = {}
    for batch in ART_BATCHES:
        smoothed.certify(image, n=batch, batch_size=batch)
        began = time.perf_counter()
        smoothed.certify(image, n=samples, batch_size=batch)
        rates[batch] = (samples + 100) / (time.perf_counter() - began)
    return rates


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large matrix product."""
    size = 8192 if device.type == "cuda" else 2048
    a = torch.randn(size, size, device=device).to(dtype)
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    rates = []
    for _ in range(6):
        wait()
        began = time.perf_counter()
        for _ in range(5):
            a @ a
        wait()
        rates.append(5 * 2 * size**3 / (time.perf_counter() - began))
    return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--art-samples", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = []
    for arch in arguments.arch or ["resnet20"]:
        model = settled(create_model(arch, num_classes=10, image_shape=SHAPE), SHAPE).to(device)
        result = measure(
            model,
            torch.full(SHAPE, 128 / 255),
            name=arch,
            sigma=SIGMA,
            num_classes=10,
            seconds=arguments.seconds,
            rounds=arguments.rounds,
            precision=arguments.precision,
        )
        kinds = {"float16": torch.float16, "bfloat16": torch.bfloat16}
        dtype = kinds.get(result.precision.partition("+")[0], torch.float32)
        limit = matmul_flops(device, dtype)
        # count_flops counts multiply-adds, as the paper does.
        used = 2 * count_flops(model, SHAPE) * result.evaluations_per_second
        art = art_rates(model, device, arguments.art_samples)
        best = max(art.values(), default=None)
        rows.append(
            dataclasses.asdict(result)
            | {
                "matmul_flops_per_second": limit,
                "flops_per_second": used,
                "share_of_matmul": used / limit,
                "art_samples_per_second": {str(batch): rate for batch, rate in art.items()},
                "ratio_to_art": None if best is None else result.samples_per_second / best,
            }
        )
        sys.stdout.write(to_table([result]))
        share = f"{used / limit:.0%} of a matrix product's {limit / 1e9:,.0f} GFLOP/s"
        ratio = "" if best is None else f"; {result.samples_per_second / best:.2f} times ART's best"
        sys.stdout.write(f"{share}{ratio}\n")
    if arguments.out is not None:
        write_json(arguments.out, {"environment": describe_environment(), "results": rows})


if __name__ == "__main__":
    main()
