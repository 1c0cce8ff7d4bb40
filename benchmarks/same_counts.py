"""Whether prepared networks vote as the originals do: counts on the same images, fresh noise.

    python benchmarks/same_counts.py --out results/certification-speed/h200-same-counts.json

The original votes in float32 as its code stands, by the published loop (TF32 off); the prepared
network in the arithmetic and way of `sween certify`. Weights are random, with batch norm statistics
of noisy images, but for `TRAINED`, which has those of the zoo's ResNet-110: a deep network without
training amplifies rounding. The last layer's bias lets the classes share the votes. Of each image:
the counts of both, each class's z-score and the chi-squared test of all classes together. If both
vote alike, z-scores are standard normal and p-values uniform.

Another --seed draws other noise for both, so that a suspicious p-value can be tested again.

No network begins after --seconds; call again with the same --out for those that had no turn.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from any_network import NETWORKS
from torch import nn
from turns import Turns

import sween.zoo
from sween.bench.published_loop import reference_batch, reference_votes
from sween.bench.untrained import calibrate_batch_norm
from sween.engine import VoteRequest
from sween.engine.forward import probe_batch
from sween.errors import ContractError, describe_error
from sween.models import create_model
from sween.smoothing import SmoothedClassifier

SIGMA, CLASSES = 0.5, 10

TRAINED = "strangers:resnet110, trained"
ZOO = "cifar10-sween6-gaussian-sigma0.50"


def trained_resnet110() -> Any:
    """Third-party code with the weights of a network of the zoo."""
    members: list[Any] = list(sween.zoo.load(ZOO).members)
    normalize, own = max(members, key=lambda member: len(list(member.modules()))).children()
    network = importlib.import_module("strangers").resnet110(CLASSES)
    network.mean.copy_(normalize.mean)
    network.std.copy_(normalize.std)
    layers = list(network.network.layers)
    blocks = [*own.stage1, *own.stage2, *own.stage3]
    pairs = [(layers[0], own.conv1), (layers[1], own.bn1), (network.network.fc, own.fc)]
    for ours, block in zip(layers[3:], blocks, strict=True):
        names = ("conv1", "bn1", "conv2", "bn2")
        pairs += [(getattr(ours, name), getattr(block, name)) for name in names]
        pairs.append((ours.down, block.shortcut))
    for ours, other in pairs:
        ours.load_state_dict(other.state_dict())
    return network


def network_of(name: str) -> nn.Module:
    """The network, in evaluation mode."""
    if name == TRAINED:
        model: nn.Module = trained_resnet110()
        return model.eval()
    shape = (3, NETWORKS[name], NETWORKS[name])
    model = create_model(name, num_classes=CLASSES, image_shape=shape)
    return calibrate_batch_norm(model, shape).eval()


@torch.no_grad()
def share_votes(model: nn.Module, image: torch.Tensor) -> None:
    """Let all classes win about equally often on noisy copies of an image."""
    last = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
    noisy = probe_batch(image, 200, SIGMA)
    if last.bias is None:
        last.bias = nn.Parameter(torch.zeros(last.out_features, device=image.device))
    last.bias.sub_(model(noisy).mean(dim=0))


def prepared_votes(
    smoothed: SmoothedClassifier, images: torch.Tensor, n: int, *, seed: int = 0
) -> Any:
    """Counts (images, classes)."""
    smoothed.engine.prepare(images[0])
    examples = list(range(len(images)))
    request = VoteRequest(images, examples, "comparison", [n] * len(images))
    (votes,) = smoothed.engine.count([request], seed=1 + seed)
    return votes.counts[0].numpy()


def original_votes(model: nn.Module, images: torch.Tensor, n: int, *, seed: int = 0) -> Any:
    """Counts (images, classes) of the untouched module, by the published loop."""
    torch.manual_seed(2 + seed)
    rows = reference_batch(images[0])
    if n % rows:
        raise SystemExit(f"--n: expected a multiple of {rows}, the published batch, got {n}")
    votes = [
        reference_votes(model, image, sigma=SIGMA, num_classes=CLASSES, batches=n // rows)
        for image in images
    ]
    return np.stack(votes)


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


def compare_network(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per image."""
    torch.manual_seed(0)
    model = network_of(name).to(options.device)
    side = NETWORKS.get(name, 32)
    images = torch.rand(options.images, 3, side, side, device=options.device)
    share_votes(model, images[0])
    # First, so that nothing that prepares the network can have touched it.
    other = original_votes(model, images, options.n, seed=options.seed)
    prepared = SmoothedClassifier(model, sigma=SIGMA, num_classes=CLASSES)
    own = prepared_votes(prepared, images, options.n, seed=options.seed)
    arithmetic = prepared.engine.precision
    rows = [
        {"network": name, "arithmetic": arithmetic, "n": options.n, **compare(*pair)}
        for pair in zip(own, other, strict=True)
    ]
    for row in rows:
        largest = max(map(abs, row["z"]))
        sys.stdout.write(f"{name} {arithmetic}: |z| up to {largest:.2f}, p {row['p']:.3f}\n")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=[TRAINED, *NETWORKS])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    content = {"n": options.n, "images": options.images, "seed": options.seed}
    turns = Turns(options.out, options.network or [TRAINED, *NETWORKS], options.seconds, content)
    for name in turns:
        try:
            turns.add(name, compare_network(name, options))
        except (RuntimeError, ContractError) as error:  # one network must not stop the others
            sys.stderr.write(f"{name}: {describe_error(error)}\n")
    turns.say_what_is_missing()


if __name__ == "__main__":
    main()
