"""Trains variations of a recipe and scores them on the weight-solving split, never on test images.

    python benchmarks/tune_recipe.py --config configs/fast/gaussian.toml --sigma 1.0 \\
        --epochs 50 --try weight_decay=2e-3 --try weight_decay=2e-3,batch_size=128 \\
        --data-root DIR --out rows.jsonl

Each --try names options that replace the recipe's; `crop_padding` is the data set's. One row per
try: what was tried, the last epoch's metrics, the ACR of the saved weights and Cohen's radius of
each image (0 where the label is wrong or withheld). Tries that already have a row are left out; a
try whose training fails, as one that diverges, has a row that says so. --keep DIR keeps the
training folders as DIR/0, DIR/1, ... in the order of the rows: the same command then resumes in
them what was killed.
"""

import argparse
import dataclasses
import json
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import torch

from sween.data import Dataset, load_dataset
from sween.errors import SweenError
from sween.evaluation import average_certified_radius
from sween.models import load_checkpoint
from sween.run_folder import describe_environment
from sween.runs import TrainingRun
from sween.runs.training import is_finished
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from sween.training import TrainConfig, train_many
from sween.training.recipes import read_recipe
from sween.training.training_images import check_dataset


def parse_try(text: str) -> dict[str, Any]:
    """`name=value,name=value` as TOML reads the values."""
    return {} if text == "recipe" else tomllib.loads("\n".join(text.split(",")))


def score(folder: Path, dataset: Dataset, settings: CertifySettings, images: int) -> dict[str, Any]:
    """The ACR of a trained network, and its parts, on images of the weight-solving split."""
    model, manifest = load_checkpoint(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    split = dataset.weights
    indices = list(range(0, len(split), max(1, len(split) // images)))
    smoothed = SmoothedClassifier(
        model.to(device), sigma=manifest.sigma, num_classes=len(dataset.class_names)
    )
    rows = smoothed.certify(
        split.images(indices),
        settings=settings,
        labels=[int(split.labels[i]) for i in indices],
        indices=indices,
    )
    right = [row.prediction == row.label for row in rows]
    radii = [
        (row.radius_cohen or 0.0) if won else 0.0 for row, won in zip(rows, right, strict=True)
    ]
    return {
        "acr": average_certified_radius(rows, radius="radius_cohen"),
        "accuracy": sum(right) / len(right),
        "radii": [round(each, 4) for each in radii],
    }


def config_of(text: str, options: argparse.Namespace, dataset: Dataset) -> TrainConfig:
    """The training of a try; refused here if it is not valid for the data set."""
    recipe = {key: value for key, value in read_recipe(options.config)[0].items() if key != "arch"}
    given = {"sigma": options.sigma, "arch": options.arch, "epochs": options.epochs}
    changes = {key: value for key, value in parse_try(text).items() if key != "crop_padding"}
    config = TrainConfig(**{**recipe, **given, **changes})
    check_dataset(config, dataset)
    return config


def run_together(
    tries: list[str], start: int, options: argparse.Namespace, dataset: Dataset
) -> None:
    """Train some variations at once, and append a row of each; `start` is how many there are."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = CertifySettings(n=options.n)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        configs = [config_of(text, options, dataset) for text in tries]
        outs = [folder / str(position) for position in range(start, start + len(tries))]
        for text in tries:
            padding = parse_try(text).get("crop_padding", dataset.crop_padding)
            dataset = dataclasses.replace(dataset, crop_padding=padding)
        started = time.perf_counter()
        try:
            train_many(configs, dataset, outs, device=device, quiet=not options.progress)
        except SweenError as error:  # the others were trained to the end
            print(f"failed: {error}", flush=True)  # noqa: T201
        seconds = time.perf_counter() - started
        for text, config, out in zip(tries, configs, outs, strict=True):
            row: dict[str, Any] = {"try": text, "seconds_together": seconds}
            if is_finished(out):
                last = TrainingRun.read(out).metrics[-1]
                row |= score(out, dataset, settings, options.images)
                row |= {"loss": last.loss, "noisy_accuracy": last.noisy_accuracy}
                print(f"{row['acr']:.4f} {last.noisy_accuracy:.4f} {text}", flush=True)  # noqa: T201
            else:
                row["failed"] = True
            row |= {"n": options.n, "images": options.images, "config": dataclasses.asdict(config)}
            with options.out.open("a") as file:
                file.write(json.dumps({**row, "environment": describe_environment()}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--arch", default="resnet20")
    parser.add_argument("--sigma", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--try", dest="tries", action="append", default=[])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    dataset = load_dataset(read_recipe(options.config)[0]["dataset"], options.data_root)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    known = {json.loads(line)["try"] for line in lines}
    left = [text for text in options.tries or ["recipe"] if text not in known]
    for text in left:
        config_of(text, options, dataset)  # before hours of training
    # Trained together they share one augmentation: those with another crop go on their own.
    groups = [[text] for text in left if "crop_padding" in text]
    rest = [text for text in left if "crop_padding" not in text]
    groups += [rest[i : i + options.at_once] for i in range(0, len(rest), options.at_once)]
    done = len(lines)
    for group in groups:
        run_together(group, done, options, dataset)
        done += len(group)


if __name__ == "__main__":
    main()
