"""sween beside plain `torch.compile`: the same network in the same process, in turns.

    python benchmarks/plain_compile.py strangers:wide_resnet28_10 --image-size 32 --out FILE

Plain: the network in float16 and channels-last, compiled in torch's default mode, on noisy copies
that stay on the GPU, with as many rows per pass as ours; nothing folded, fused or captured by us.
Ours: `sween bench` of the same network first, then both in turns. Random weights.
"""

import argparse
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.bench import calibrate_batch_norm, measure
from sween.engine import VoteRequest
from sween.models import create_model
from sween.run_folder import describe_environment, write_json
from sween.smoothing import SmoothedClassifier

SIGMA, CLASSES = 0.5, 10

Votes = Callable[[int], int]
"""Counts the votes of that many passes; returns the number of samples."""


def plain_votes(model: nn.Module, image: torch.Tensor, rows: int) -> Votes:
    """Votes of a network in float16, compiled as torch does by default."""
    own = copy.deepcopy(model).eval().half()
    run = torch.compile(own.to(memory_format=torch.channels_last), dynamic=False)  # type: ignore[call-overload]
    clean = image.half().expand(rows, *image.shape)
    clean = clean.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def votes(passes: int) -> int:
        counts = torch.zeros(CLASSES, dtype=torch.int64, device=image.device)
        for _ in range(passes):
            labels = run(torch.add(clean, torch.randn_like(clean), alpha=SIGMA)).argmax(dim=1)
            counts += torch.bincount(labels, minlength=CLASSES)
        return int(counts.sum())  # waits for all of them

    return votes


def our_votes(smoothed: SmoothedClassifier, image: torch.Tensor) -> Votes:
    smoothed.engine.prepare(image)

    def votes(passes: int) -> int:
        n = passes * smoothed.engine.forward_rows
        (counted,) = smoothed.engine.count([VoteRequest(image[None], [0], "bench", [n])], seed=0)
        return int(counted.counts.sum())

    return votes


def rate(votes: Votes, seconds: float) -> float:
    """Samples per second over about `seconds`."""
    began, done, passes = time.perf_counter(), 0, 1
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        done += votes(passes)
        if time.perf_counter() - before < seconds / 10:
            passes *= 2
    return done / (time.perf_counter() - began)


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What `sween bench` measures, and the turns with the plain network."""
    shape = (3, options.image_size, options.image_size)
    model = create_model(name, num_classes=CLASSES, image_shape=shape)
    model = calibrate_batch_norm(model, shape).to(options.device)
    image = torch.full(shape, 0.5)
    timing = {"seconds": options.seconds, "rounds": options.rounds}
    known = measure(model, image, name=name, sigma=SIGMA, num_classes=CLASSES, **timing)
    image = image.to(options.device)
    ours = our_votes(SmoothedClassifier(model, sigma=SIGMA, num_classes=CLASSES), image)
    began = time.perf_counter()
    plain = plain_votes(model, image, known.forward_rows)
    plain(1)
    first = time.perf_counter() - began
    turns = [
        (rate(ours, options.seconds), rate(plain, options.seconds)) for _ in range(options.rounds)
    ]
    medians = [statistics.median(column) for column in zip(*turns, strict=True)]
    return {
        **dataclasses.asdict(known),
        "turns_with_plain": turns,
        "plain_samples_per_second": medians[1],
        "plain_first_vote_seconds": first,
        "ratio_to_plain": medians[0] / medians[1],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    row = compare(options.network, options)
    print(f"{options.network}: {row['ratio_to_plain']:.2f} of plain torch.compile")  # noqa: T201
    write_json(options.out, {"environment": describe_environment(), "results": [row]})


if __name__ == "__main__":
    main()
