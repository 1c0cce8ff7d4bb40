"""How fast this machine certifies, beside a loop as published code has it, in the same run."""

import contextlib
import dataclasses
import re
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sween.engine import VoteRequest
from sween.ensemble import ExitPolicy, WeightedEnsemble
from sween.models.device import evaluating
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier

REFERENCE_BATCH = 1000
"""Of the reference loop, as in the published code."""

SETTLING_BATCH = 16
"""Noisy images that an untrained network's batch norms are given to settle on."""

SEED = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What was measured of one model.

    Attributes:
        model: its name.
        members: networks evaluated for a noisy image where no exit saves any.
        samples_per_second: noisy images voted on.
        evaluations_per_second: network evaluations; fewer than members times samples with an exit.
        reference_samples_per_second: the same in the reference loop.
        ratio: samples a second over the reference's.
        seconds_per_certificate: of n0 + n noisy images, at the measured rate.
        certificates_per_second: the same the other way round.
        sigma: noise level.
        n0: votes that select the class.
        n: votes that bound its probability.
        prepare_seconds: folding, compiling and probing, once.
        precision: the arithmetic that votes.
        exit: early exit of an ensemble.
        noise: its law.
        forward_rows: rows of a forward pass.
        device: kind of device.
        memory_bytes: the most that was held, on a GPU by tensors, on a CPU by the process with
            all that it had loaded.
        reference_memory_bytes: the same in the reference loop.
        rates: samples a second of each round, ours and the reference's in turn.
    """

    model: str
    members: int
    samples_per_second: float
    evaluations_per_second: float
    reference_samples_per_second: float
    ratio: float
    seconds_per_certificate: float
    certificates_per_second: float
    sigma: float
    n0: int
    n: int
    prepare_seconds: float
    precision: str
    exit: str
    noise: str
    forward_rows: int
    device: str
    memory_bytes: int
    reference_memory_bytes: int
    rates: list[tuple[float, float]]


def measure(
    model: nn.Module,
    image: torch.Tensor,
    *,
    name: str,
    sigma: float,
    num_classes: int,
    n0: int = 100,
    n: int = 100_000,
    seconds: float = 3.0,
    rounds: int = 3,
    exit: str | ExitPolicy = "none",
    **options: Any,
) -> BenchResult:
    """Samples a second of a model and of the reference loop, in turns, and their ratio.

    The rates are medians over rounds; taking turns lets both feel the same machine.

    Args:
        model: a module or a `WeightedEnsemble`, on the device to measure.
        image: (C, H, W) to add noise to.
        name: of the model.
        sigma: noise level.
        num_classes: M.
        n0: for the time of a certificate.
        n: for the time of a certificate.
        seconds: of each turn.
        rounds: turns of each.
        exit: early exit of an ensemble.
        options: of `SmoothedClassifier`.
    """
    smoothed = SmoothedClassifier(
        model, sigma=sigma, num_classes=num_classes, exit=exit, name=name, **options
    )
    engine = smoothed.engine
    image = image.to(engine.device)
    _reset_memory(engine.device)
    began = time.perf_counter()
    engine.prepare(image)
    prepared = time.perf_counter() - began
    size = max(engine.batch_blocks * NOISE_BLOCK, engine.forward_rows)
    evaluations = samples = 0

    def ours(batches: int) -> int:
        nonlocal evaluations, samples
        (votes,) = engine.count(
            [VoteRequest(image[None], [0], "bench", [size * batches])], seed=SEED
        )
        evaluations += int(votes.evaluations.sum())
        samples += size * batches
        return size * batches

    def theirs(batches: int) -> int:
        reference_votes(model, image, sigma=sigma, num_classes=num_classes, batches=batches)
        return REFERENCE_BATCH * batches

    # So that nothing is done for the first time; on a GPU two batches may be in memory at once.
    ours(2 if engine.device.type == "cuda" else 1)
    own_memory = _memory(engine.device)
    _reset_memory(engine.device)
    theirs(1)
    reference_memory = _memory(engine.device)
    rates = [(_rate(ours, seconds), _rate(theirs, seconds)) for _ in range(rounds)]
    own, reference = (statistics.median(column) for column in zip(*rates, strict=True))
    return BenchResult(
        model=name,
        members=len(model.members) if isinstance(model, WeightedEnsemble) else 1,
        samples_per_second=own,
        evaluations_per_second=own * evaluations / samples,
        reference_samples_per_second=reference,
        ratio=own / reference,
        seconds_per_certificate=(n0 + n) / own,
        certificates_per_second=own / (n0 + n),
        sigma=engine.sigma,
        n0=n0,
        n=n,
        prepare_seconds=prepared,
        precision=engine.precision,
        exit=engine.exits[engine.name],
        noise=engine.noise.name,
        forward_rows=engine.forward_rows,
        device=engine.device.type,
        memory_bytes=own_memory,
        reference_memory_bytes=reference_memory,
        rates=rates,
    )


def _rate(run: Callable[[int], int], seconds: float) -> float:
    """Samples a second over about so many seconds; each call counts on the host, so it is done."""
    began, done, batches = time.perf_counter(), 0, 1
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        done += run(batches)
        if time.perf_counter() - before < seconds / 10:
            batches *= 2
    return done / (time.perf_counter() - began)


@torch.no_grad()
def settled(model: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
    """An untrained model in evaluation mode whose batch norms know noisy images.

    Without that the activations of a deep network grow from block to block, beyond what float16
    can hold.
    """
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over passes
    generator = torch.Generator().manual_seed(SEED)
    model.train()(0.5 + 0.5 * torch.randn(SETTLING_BATCH, *shape, generator=generator))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()


@torch.no_grad()
def reference_votes(
    model: nn.Module, image: torch.Tensor, *, sigma: float, num_classes: int, batches: int
) -> np.ndarray:
    """The loop of the published code: float32, eager, batches of 1,000, counted on the host."""
    counts = np.zeros(num_classes, dtype=np.int64)
    with evaluating(model):
        for _ in range(batches):
            batch = image.repeat(REFERENCE_BATCH, 1, 1, 1)
            noise = torch.randn_like(batch) * sigma
            labels = model(batch + noise).argmax(1).cpu().numpy()
            counts += np.bincount(labels, minlength=num_classes)
    return counts


def _reset_memory(device: torch.device) -> None:
    """Forget what was held before, as far as the system lets one."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # Linux alone has it
        Path("/proc/self/clear_refs").write_text("5")


def _memory(device: torch.device) -> int:
    """The most bytes held since then."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def to_table(results: list[BenchResult]) -> str:
    """The results as a Markdown table."""
    head = (
        *("model", "exit", "arithmetic", "samples/s", "evaluations/s", "certificates/s"),
        *("reference samples/s", "ratio", "memory", "reference's"),
    )
    rows = [
        (
            result.model,
            result.exit,
            result.precision,
            f"{result.samples_per_second:,.0f}",
            f"{result.evaluations_per_second:,.0f}",
            f"{result.certificates_per_second:.3g}",
            f"{result.reference_samples_per_second:,.0f}",
            f"{result.ratio:.2f}",
            f"{result.memory_bytes / 2**20:,.0f} MiB",
            f"{result.reference_memory_bytes / 2**20:,.0f} MiB",
        )
        for result in results
    ]
    lines = [head, (":---", ":---", ":---", *("---:",) * 7), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
