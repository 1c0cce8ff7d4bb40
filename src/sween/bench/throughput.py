"""Samples per second of one model and of the reference loop, measured alternately."""

import contextlib
import dataclasses
import re
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.bench.matrix_rate import matrix_rate
from sween.bench.published_loop import reference_batch, reference_votes
from sween.engine import ForwardPassShrunk, VoteRequest
from sween.engine.forward import probe_batch
from sween.engine.kernels import INTEGER_WIDTHS, is_cifar_resnet
from sween.engine.quantized_on_cpu import has_bytes
from sween.ensemble import ExitPolicy, WeightedEnsemble
from sween.errors import OutOfMemory
from sween.models.flops import count_matrix_flops
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier

SEED = 0

VOTES_COMPARED = 1000
"""Noisy images on which the labels of two arithmetics are compared."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherArithmetic:
    """The same model in another arithmetic, for comparison.

    Attributes:
        precision: of the networks.
        samples_per_second: noisy images voted on per second.
        speedup: relative to the measured arithmetic.
        votes_compared: noisy images that both arithmetics labelled.
        votes_changed: how many got another label.

    Example:
        See `measure`.
    """

    precision: str
    samples_per_second: float
    speedup: float
    votes_compared: int
    votes_changed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Measured throughput of one model.

    Attributes:
        model: its name.
        image_shape: (C, H, W).
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
        first_vote_seconds: from the model in memory to the first batch of votes on the host.
        flops_per_second: of the networks' matrix products and convolutions; None if an early exit
            spares some of several members that cost differently.
        matmul_flops_per_second: of a product of large matrices in the same arithmetic.
        share_of_matmul: the former relative to the latter.
        precision: arithmetic of the networks.
        exit: early exit of an ensemble.
        noise: distribution of the noise.
        forward_rows: rows per forward pass.
        device: kind of device.
        memory_bytes: peak memory; of tensors on a GPU, of the whole process on a CPU.
        reference_memory_bytes: the same for the reference loop.
        rates: samples per second of each round, as (sween, reference) pairs.
        others: other arithmetics that were tried too.

    Example:
        See `measure`.
    """

    model: str
    image_shape: tuple[int, ...]
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
    first_vote_seconds: float
    flops_per_second: float | None
    matmul_flops_per_second: float
    share_of_matmul: float | None
    precision: str
    exit: str
    noise: str
    forward_rows: int
    device: str
    memory_bytes: int
    reference_memory_bytes: int
    rates: list[tuple[float, float]]
    others: list[OtherArithmetic]


class _Voting:
    """Votes on noisy copies of one image, with the number of evaluations they took."""

    def __init__(self, smoothed: SmoothedClassifier, image: torch.Tensor) -> None:
        self.engine, self.image = smoothed.engine, image.to(smoothed.engine.device)
        began = time.perf_counter()
        self.engine.prepare(self.image)
        self.prepare_seconds = time.perf_counter() - began
        self.size = max(self.engine.batch_blocks * NOISE_BLOCK, self.engine.forward_rows)
        self.evaluations = self.samples = 0
        self(1)
        self.first_vote_seconds = time.perf_counter() - began

    def __call__(self, batches: int) -> int:
        """Count the votes of that many batches; returns the number of samples."""
        request = VoteRequest(self.image[None], [0], "bench", [self.size * batches])
        try:
            (votes,) = self.engine.count([request], seed=SEED)
        except ForwardPassShrunk as error:
            raise OutOfMemory("while measuring", error) from None
        self.evaluations += int(votes.evaluations.sum())
        self.samples += self.size * batches
        return self.size * batches


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
    precision: str = "auto",
    **options: Any,
) -> BenchResult:
    """Samples per second of a model and of the reference loop, measured alternately.

    The rates are medians over rounds; alternating exposes both to the same load on the machine.
    With the automatic precision on a CPU, votes in other arithmetics that may be faster take turns
    with them too: int8 where the CPU multiplies bytes fast and all networks have the ranges of
    `sween quantize`, and bfloat16 where its matrix products are faster.

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
        precision: arithmetic of the networks, as in `SmoothedClassifier`.
        options: passed to `SmoothedClassifier`.

    Example:
        >>> import sween
        >>> from sween.bench import faster_arithmetics, measure, to_table
        >>> image = sween.load_dataset("digits").test.images([0])[0]
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> result = measure(  # doctest: +SKIP
        ...     ensemble, image, name="SWEEN-3", sigma=0.5, num_classes=10
        ... )
        >>> print(to_table([result]), *faster_arithmetics([result]))  # doctest: +SKIP
    """

    def voting(precision: str, **more: Any) -> _Voting:
        options_too = {"exit": exit, "name": name, "precision": precision, **options, **more}
        smoothed = SmoothedClassifier(model, sigma=sigma, num_classes=num_classes, **options_too)
        _reset_memory(smoothed.engine.device)
        return _Voting(smoothed, image)

    ours = voting(precision)
    engine, image = ours.engine, ours.image
    limit = matrix_rate(engine.device, engine.precision)

    def theirs(batches: int) -> int:
        reference_votes(model, image, sigma=sigma, num_classes=num_classes, batches=batches)
        return reference_batch(image) * batches

    if engine.device.type == "cuda":
        ours(2)  # two batches may be in memory at the same time
    own_memory = _memory(engine.device)
    _reset_memory(engine.device)
    theirs(1)
    reference_memory = _memory(engine.device)
    others = list[_Voting]()
    if (precision, engine.device.type) == ("auto", "cpu"):
        if has_bytes(engine.device) and _has_ranges(model, image.shape):
            others.append(voting("int8", compile=True))
        if matrix_rate(engine.device, "bfloat16") > limit:
            others.append(voting("bfloat16"))
    turns: list[Callable[[int], int]] = [ours, theirs, *others]
    rates = [[_rate(turn, seconds) for turn in turns] for _ in range(rounds)]
    own, reference, *other_rates = (
        statistics.median(column) for column in zip(*rates, strict=True)
    )
    flops = _flops_per_sample(model, ours)
    return BenchResult(
        model=name,
        image_shape=tuple(image.shape),
        members=len(model.members) if isinstance(model, WeightedEnsemble) else 1,
        samples_per_second=own,
        evaluations_per_second=own * ours.evaluations / ours.samples,
        reference_samples_per_second=reference,
        ratio=own / reference,
        seconds_per_certificate=(n0 + n) / own,
        certificates_per_second=own / (n0 + n),
        sigma=engine.sigma,
        n0=n0,
        n=n,
        prepare_seconds=ours.prepare_seconds,
        first_vote_seconds=ours.first_vote_seconds,
        flops_per_second=None if flops is None else flops * own,
        matmul_flops_per_second=limit,
        share_of_matmul=None if flops is None else flops * own / limit,
        precision=engine.precision,
        exit=engine.exits[engine.name],
        noise=engine.noise.name,
        forward_rows=engine.forward_rows,
        device=engine.device.type,
        memory_bytes=own_memory,
        reference_memory_bytes=reference_memory,
        rates=[(pair[0], pair[1]) for pair in rates],
        others=[
            _other(ours, each, rate, rate / own)
            for each, rate in zip(others, other_rates, strict=True)
        ],
    )


def _has_ranges(model: nn.Module, image_shape: Sequence[int]) -> bool:
    """Whether all networks can vote in int8."""
    members = list(model.members) if isinstance(model, WeightedEnsemble) else [model]
    return all(
        is_cifar_resnet(member, image_shape, widths=INTEGER_WIDTHS)
        and "1.activation_ranges" in member.state_dict()
        for member in members
    )


def _flops_per_sample(model: nn.Module, voting: _Voting) -> float | None:
    """Operations of the networks per noisy image, as far as the evaluations tell."""
    channels, height, width = voting.image.shape
    members = list(model.members) if isinstance(model, WeightedEnsemble) else [model]
    costs = [count_matrix_flops(member, (channels, height, width)) for member in members]
    evaluations = voting.evaluations / voting.samples
    if evaluations == len(members):
        return sum(costs)
    return evaluations * costs[0] if len({*costs}) == 1 else None


def _other(ours: _Voting, other: _Voting, rate: float, speedup: float) -> OtherArithmetic:
    noisy = probe_batch(ours.image, VOTES_COMPARED, ours.engine.sigma)
    changed = ours.engine.labels(noisy) != other.engine.labels(noisy)
    return OtherArithmetic(
        precision=other.engine.precision,
        samples_per_second=rate,
        speedup=speedup,
        votes_compared=len(changed),
        votes_changed=int(changed.sum()),
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
