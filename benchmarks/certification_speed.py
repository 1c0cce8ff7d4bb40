"""Certification speed on this machine: sween, the published loop, ART, and the arithmetic's limit.

    python benchmarks/certification_speed.py --arch resnet20 --device cpu --out FILE

ART (pip install adversarial-robustness-toolbox) is measured where it is installed, at its best of
several batch sizes, right after the other two, which take turns. Limits are the fastest product of
matrices, of several sizes, in the arithmetic that votes, and on a CPU the float32 multiply-adds of
its vector units.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fma_peak import fma_flops

from sween.bench import measure, settled, to_table
from sween.models import count_flops, create_model
from sween.runs import describe_environment, write_json

SHAPE = (3, 32, 32)
SIGMA = 0.5
CPU_SIZES = (256, 384, 512, 768, 1024, 2048)
ART_BATCHES = (16, 32, 64, 128, 256, 512, 1000)


def art_version() -> str | None:
    """Of ART, where it is installed."""
    try:
        return importlib.metadata.version("adversarial-robustness-toolbox")
    except importlib.metadata.PackageNotFoundError:
        return None


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
    """Floating-point operations a second of a matrix product, of the best size."""
    on_gpu = device.type == "cuda"
    return max(_flops_of_size(device, dtype, size) for size in ((8192,) if on_gpu else CPU_SIZES))


def _flops_of_size(device: torch.device, dtype: torch.dtype, size: int) -> float:
    a = torch.randn(size, size, device=device).to(dtype)
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    repeats = max(5, 2 * (2048 // size) ** 3)
    rates = []
    for _ in range(6):
        wait()
        began = time.perf_counter()
        for _ in range(repeats):
            a @ a
        wait()
        rates.append(repeats * 2 * size**3 / (time.perf_counter() - began))
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
        vectors = fma_flops(torch.get_num_threads()) if device.type == "cpu" else None
        art = art_rates(model, device, arguments.art_samples)
        best = max(art.values(), default=None)
        rows.append(
            dataclasses.asdict(result)
            | {
                "matmul_flops_per_second": limit,
                "flops_per_second": used,
                "share_of_matmul": used / limit,
                "fma_flops_per_second": vectors,
                "share_of_fma": None if vectors is None else used / vectors,
                "art_version": art_version(),
                "art_samples_per_second": {str(batch): rate for batch, rate in art.items()},
                "ratio_to_art": None if best is None else result.samples_per_second / best,
            }
        )
        sys.stdout.write(to_table([result]))
        share = f"{used / limit:.0%} of a matrix product's {limit / 1e9:,.0f} GFLOP/s"
        if vectors is not None:
            share += f", {used / vectors:.0%} of the vector units' {vectors / 1e9:,.0f} in float32"
        ratio = "" if best is None else f"; {result.samples_per_second / best:.2f} times ART's best"
        sys.stdout.write(f"{share}{ratio}\n")
    if arguments.out is not None:
        write_json(arguments.out, {"environment": describe_environment(), "results": rows})


if __name__ == "__main__":
    main()
