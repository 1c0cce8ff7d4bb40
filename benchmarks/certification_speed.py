"""Certification speed on this machine: sween, the published loop, ART, and the arithmetic's limit.

    python benchmarks/certification_speed.py --arch resnet20 --device cpu --out FILE

ART (pip install adversarial-robustness-toolbox) is measured where it is installed, at its best of
several batch sizes, in turns with ours after ours took turns with the published loop. On a CPU the
float32 multiply-adds of its vector units are measured too.
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

from sween.bench import calibrate_batch_norm, measure, to_table
from sween.models import create_model
from sween.run_folder import describe_environment, write_json
from sween.smoothing import SmoothedClassifier

SHAPE = (3, 32, 32)
SIGMA = 0.5
ART_BATCHES = (16, 32, 64, 128, 256, 512, 1000)


def art_certifier(
    model: torch.nn.Module, device: torch.device
) -> Callable[[int, int], float] | None:
    """Samples per second of ART's certify, by batch size and n; None where it is not installed."""
    if importlib.util.find_spec("art") is None:
        return None
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

    def rate(batch: int, samples: int) -> float:
        began = time.perf_counter()
        smoothed.certify(image, n=samples, batch_size=batch)
        return float(samples + smoothed.sample_size) / (time.perf_counter() - began)

    return rate


def beside_art(
    model: torch.nn.Module, device: torch.device, precision: str, samples: int, rounds: int
) -> dict[str, Any]:
    """ART's rate at each batch size; then at its best one in turns with ours, and their ratio."""
    art = art_certifier(model, device)
    if art is None:
        return {}
    rates = {}
    for batch in ART_BATCHES:
        art(batch, batch)
        rates[batch] = art(batch, samples)
    best = max(rates, key=lambda batch: rates[batch])
    ours = SmoothedClassifier(model, sigma=SIGMA, num_classes=10, precision=precision)
    image = torch.full(SHAPE, 128 / 255, device=device)
    turns = []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        ours.certify(image, n=samples, n0=100, seed=turn)
        own = (samples + 100) / (time.perf_counter() - began)
        turns.append((own, art(best, samples)))
    del turns[0]  # in which ours was prepared
    return {
        "art_version": importlib.metadata.version("adversarial-robustness-toolbox"),
        "art_samples_per_second": {str(batch): rate for batch, rate in rates.items()},
        "turns_with_art": turns,
        "ratio_to_art": statistics.median(own / theirs for own, theirs in turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--art-samples", type=int, default=4000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = []
    for arch in arguments.arch or ["resnet20"]:
        model = calibrate_batch_norm(
            create_model(arch, num_classes=10, image_shape=SHAPE), SHAPE
        ).to(device)
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
        used, limit = result.flops_per_second, result.matmul_flops_per_second
        assert used is not None  # a single network
        vectors = fma_flops(torch.get_num_threads()) if device.type == "cpu" else None
        art = beside_art(
            model, device, arguments.precision, arguments.art_samples, arguments.rounds
        )
        rows.append(
            dataclasses.asdict(result)
            | {
                "fma_flops_per_second": vectors,
                "share_of_fma": None if vectors is None else used / vectors,
            }
            | art
        )
        sys.stdout.write(to_table([result]))
        share = f"{used / limit:.0%} of a matrix product's {limit / 1e9:,.0f} GFLOP/s"
        if vectors is not None:
            share += f", {used / vectors:.0%} of the vector units' {vectors / 1e9:,.0f} in float32"
        ratio = f"; {art['ratio_to_art']:.2f} times ART's best" if art else ""
        sys.stdout.write(f"{share}{ratio}\n")
    if arguments.out is not None:
        write_json(arguments.out, {"environment": describe_environment(), "results": rows})


if __name__ == "__main__":
    main()
