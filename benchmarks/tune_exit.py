"""Tries early exits on the weight-solving split, never on test images.

    python benchmarks/tune_exit.py ENSEMBLE --try "paper(threshold=0.95,alpha=0.05)" \\
        --try "mixed(threshold=0.99,share=0.7)" --data-root DIR --out rows.jsonl

All exits, the exact one among them, vote on the same noise in one pass. One row per exit: the ACR
of the full ensemble and of the one with the exit, and member evaluations per sample.
"""

import argparse
import json
from pathlib import Path

import torch

from sween.data import load_dataset
from sween.ensemble.early_exit import read_exit
from sween.evaluation import average_certified_radius
from sween.run_folder import describe_environment
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from sween.zoo import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ensemble")
    parser.add_argument("--try", dest="tries", action="append", required=True)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--n", type=int, default=5_000)
    options = parser.parse_args()
    loaded = load(options.ensemble)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    split = load_dataset(loaded.dataset, options.data_root).weights
    indices = list(range(0, len(split), max(1, len(split) // options.images)))
    settings = CertifySettings(n=options.n)
    loaded.to(device)
    smoothed = SmoothedClassifier(
        loaded,
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        other_exits=[read_exit(text) for text in ("exact", *options.tries)],
    )
    groups = smoothed.certify_voters(
        split.images(indices),
        settings,
        labels=[int(split.labels[i]) for i in indices],
        indices=indices,
    )
    *others, full = ([group[name] for group in groups] for name in smoothed.engine.voters)
    samples = sum(row.samples for row in full)
    for rows in others:
        row = {
            "exit": rows[0].exit,
            "acr": average_certified_radius(rows, radius="radius_cohen"),
            "acr_full": average_certified_radius(full, radius="radius_cohen"),
            "members_per_sample": sum(row.member_evaluations for row in rows) / samples,
            "members": len(loaded.members),
            "n": options.n,
            "images": len(indices),
            "environment": describe_environment(),
        }
        with options.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
