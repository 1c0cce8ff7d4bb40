"""Whether prepared networks vote as the originals do: counts on the same images, fresh noise.

    python benchmarks/same_counts.py --out results/certification-speed/h200-same-counts.json

The original votes in float32 as its code stands (TF32 off); the prepared network in the arithmetic
and way of `sween certify`. Weights are random, with batch norm statistics of noisy images and the
last layer's bias set so that the classes share the votes. Of each image: the counts of both, each
class's z-score and the chi-squared test of all classes together. If both vote alike, z-scores are
standard normal and p-values uniform.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from any_network import NETWORKS
from torch import nn

from sween.bench.untrained import calibrate_batch_norm
from sween.engine import VoteRequest
from sween.engine.forward import probe_batch
from sween.models import create_model
from sween.run_folder import describe_environment, write_json
from sween.smoothing import SmoothedClassifier

SIGMA, CLASSES = 0.5, 10


@torch.no_grad()
def share_votes(model: nn.Module, image: torch.Tensor) -> None:
    """Let all classes win about equally often on noisy copies of an image."""
    last = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
    noisy = probe_batch(image, 200, SIGMA)
    if last.bias is None:
        last.bias = nn.Parameter(torch.zeros(last.out_features, device=image.device))
    last.bias.sub_(model(noisy).mean(dim=0))


def votes_of(smoothed: SmoothedClassifier, images: torch.Tensor, n: int, seed: int) -> Any:
    """Counts (images, classes)."""
    smoothed.engine.prepare(images[0])
    examples = list(range(len(images)))
    request = VoteRequest(images, examples, "comparison", [n] * len(images))
    (votes,) = smoothed.engine.count([request], seed=seed)
    return votes.counts[0].numpy()


def compare(own: Any, other: Any) -> dict[str, Any]:
    """Two rows of counts of as many votes."""
    total = own + other
    share = total / total.sum()
    spread = np.sqrt(total.sum() * share * (1 - share))
    z = np.divide(own - other, spread, out=np.zeros(len(own)), where=spread > 0)
    seen = total > 0
    p = (
        scipy.stats.chi2_contingency(np.stack([own, other])[:, seen]).pvalue
        if seen.sum() > 1
        else 1
    )
    counts = {"prepared": own.tolist(), "original": other.tolist()}
    return {**counts, "z": [round(float(each), 3) for each in z], "p": float(p)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=[*NETWORKS])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    end, rows = time.monotonic() + options.seconds, list[dict[str, Any]]()
    for name in options.network or NETWORKS:
        if time.monotonic() > end:
            break
        torch.manual_seed(0)
        shape = (3, NETWORKS[name], NETWORKS[name])
        model = create_model(name, num_classes=CLASSES, image_shape=shape)
        model = calibrate_batch_norm(model, shape).eval().to(options.device)
        images = torch.rand(options.images, *shape, device=options.device)
        share_votes(model, images[0])
        shared: dict[str, Any] = {"sigma": SIGMA, "num_classes": CLASSES}
        prepared = SmoothedClassifier(model, **shared)
        own = votes_of(prepared, images, options.n, seed=1)
        original = SmoothedClassifier(model, **shared, precision="float32", compile=False)
        other = votes_of(original, images, options.n, seed=2)
        arithmetic = prepared.engine.precision
        for a, b in zip(own, other, strict=True):
            row = {"network": name, "arithmetic": arithmetic, "n": options.n, **compare(a, b)}
            rows.append(row)
            largest = max(map(abs, row["z"]))
            sys.stdout.write(f"{name} {arithmetic}: |z| up to {largest:.2f}, p {row['p']:.3f}\n")
        write_json(options.out, {"environment": describe_environment(), "results": rows})
        del prepared, original, model


if __name__ == "__main__":
    main()
