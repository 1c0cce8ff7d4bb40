"""Certification throughput on this machine, compared with the loop of the published code."""

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

from sween.engine import ForwardPassShrunk, VoteRequest
from sween.ensemble import ExitPolicy, WeightedEnsemble
from sween.errors import OutOfMemory
from sween.markdown import NUMBER, TEXT, markdown_table
from sween.models.evaluation_mode import evaluating
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier

REFERENCE_BATCH = 1000
"""Batch size of the reference loop, as in the published code."""

CALIBRATION_BATCH = 16
"""Noisy images from which the batch norm statistics of an untrained network are estimated."""

SEED = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Measured throughput of one model.

    Attributes:
        model: its name.
        members: network evaluations per noisy image without an early exit.
        samples_per_second: noisy images voted on per second.
        evaluations_per_second: network evaluations; with an exit fewer than members times samples.
        reference_samples_per_second: the same for the reference loop.
        ratio: samples per second relative to the reference loop.
        seconds_per_certificate: for n0 + n noisy images, at the measured rate.
        certificates_per_second: its inverse.
        sigma: noise level.
        n0: votes that select the class.
        n: votes that bound its probability.
        prepare_seconds: one-off time for folding, compiling and checking the networks.
        precision: arithmetic of the networks.
        exit: early exit of an ensemble.
        noise: distribution of the noise.
        forward_rows: rows per forward pass.
        device: kind of device.
        memory_bytes: peak memory; of tensors on a GPU, of the whole process on a CPU.
        reference_memory_bytes: the same for the reference loop.
        rates: samples per second of each round, as (sween, reference) pairs.
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
    """Samples per second of a model and of the reference loop, measured alternately.

    The rates are medians over rounds; alternating exposes both to the same load on the machine.

    Args:
        model: a module or a `WeightedEnsemble`, on the device to measure.
        image: (C, H, W) to add noise to.
        name: of the model.
        sigma: noise level.
        num_classes: M.
        n0: selection votes of a certificate, for its time.
        n: estimation votes of a certificate, for its time.
        seconds: duration of each measurement.
        rounds: measurements of each loop.
        exit: early exit of an ensemble.
        options: passed to `SmoothedClassifier`.
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
        request = VoteRequest(image[None], [0], "bench", [size * batches])
        try:
            (votes,) = engine.count([request], seed=SEED)
        except ForwardPassShrunk as error:
            raise OutOfMemory("while measuring", error) from None
        evaluations += int(votes.evaluations.sum())
        samples += size * batches
        return size * batches

    def theirs(batches: int) -> int:
        reference_votes(model, image, sigma=sigma, num_classes=num_classes, batches=batches)
        return REFERENCE_BATCH * batches

    # Warm-up; on a GPU two batches may be in memory at the same time.
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
    """Samples per second over about `seconds`; each call ends with its counts on the host."""
    began, done, batches = time.perf_counter(), 0, 1
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        done += run(batches)
        if time.perf_counter() - before < seconds / 10:
            batches *= 2
    return done / (time.perf_counter() - began)


@torch.no_grad()
def calibrate_batch_norm(model: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
    """Estimate an untrained model's batch norm statistics on noisy images; set evaluation mode.

    Without this the activations of a deep network grow from block to block and overflow float16.
    """
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over passes
    generator = torch.Generator().manual_seed(SEED)
    model.train()(0.5 + 0.5 * torch.randn(CALIBRATION_BATCH, *shape, generator=generator))
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
    """Reset the peak memory, where the system supports it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # exists on Linux only
        Path("/proc/self/clear_refs").write_text("5")


def _memory(device: torch.device) -> int:
    """Peak memory in bytes since the last reset."""
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
        *("reference samples/s", "ratio", "memory", "reference memory"),
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
    return markdown_table(head, [TEXT] * 3 + [NUMBER] * 7, rows)
