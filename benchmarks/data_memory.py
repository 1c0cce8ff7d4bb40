"""Memory of training on a folder of photos that is not held in memory.

Makes a synthetic folder of JPEGs, then measures each stage in a process of its own: building the
cache of decoded images, training from it, training on random resized crops of the photos,
certifying some test images, and, to compare, training with all images in memory. Memory is the
proportional set size (Pss in /proc/PID/smaps_rollup) of that process and all its descendants,
sampled ten times a second; Pss_File, the part that is pages of files, the kernel may drop at any
time. At the end the folder is removed.

    python benchmarks/data_memory.py --out results/data-streaming/memory.json
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from sween.data import load_dataset
from sween.data.dataset import MEMORY_VARIABLE
from sween.models import register_architecture
from sween.paths import CACHE_VARIABLE
from sween.run_folder import describe_environment, write_json
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.training import TrainConfig
from sween.training.trainer import Trainer

CLASSES = 10
TEST_SHARE = 0.02
IMAGE_SIZE = 128
BATCH = 64
STAGES = ("import", "list", "cache", "cached", "crops", "certify", "held")


def write_photos(root: Path, count: int) -> int:
    """JPEGs of 160 x 120 pixels; returns their size in bytes."""
    test = int(count * TEST_SHARE)
    names = [
        root / ("val" if number < test else "train") / f"c{number % CLASSES}" / f"{number:06}.jpg"
        for number in range(count)
    ]
    for folder in {name.parent for name in names}:
        folder.mkdir(parents=True)
    with concurrent.futures.ProcessPoolExecutor() as pool:
        return sum(pool.map(_write_photo, names, chunksize=500))


def _write_photo(path: Path) -> int:
    random = np.random.default_rng(int(path.stem))
    coarse = Image.fromarray(random.integers(0, 256, (15, 20, 3), dtype=np.uint8))
    coarse.resize((160, 120), Image.Resampling.BICUBIC).save(path, quality=80)
    return path.stat().st_size


def small_network(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4, padding=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


def run_stage(stage: str, root: Path, out: Path, steps: int) -> None:
    """What is measured; runs in a process of its own."""
    if stage == "import":
        return
    dataset = load_dataset("image_folder", root, image_size=IMAGE_SIZE)
    if stage == "list":
        return
    if stage == "cache":
        dataset.train.pixels.contents()
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if stage == "certify":
        smoothed = SmoothedClassifier(
            small_network(CLASSES).to(device), sigma=0.5, num_classes=CLASSES
        )
        some = range(0, len(dataset.test), 10)
        certify_dataset(smoothed, dataset, out=out / stage, indices=some, n=1000)
        return
    register_architecture("small", small_network, image_shape=(3, IMAGE_SIZE, IMAGE_SIZE))
    config = TrainConfig(
        dataset="image_folder",
        arch="small",
        sigma=0.5,
        epochs=1,
        batch_size=BATCH,
        augmentation="resized-crop-flip" if stage == "crops" else None,
    )
    trainer = Trainer(config, dataset, out / stage, device=device)
    began = time.perf_counter()
    running = trainer.run()
    for _ in zip(range(steps), running, strict=False):
        pass
    rate = steps * BATCH / (time.perf_counter() - began)
    (out / f"{stage}.rate").write_text(f"{rate:.0f}")
    running.close()


def memory_of(pid: int) -> dict[str, int]:
    """Kilobytes of a process and its descendants, by kind."""
    total: dict[str, int] = {}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        for name, value, *_ in (line.split() for line in lines):
            total[name] = total.get(name, 0) + int(value)
        children = " ".join(
            path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")
        )
        for child in children.split():
            for name, number in memory_of(int(child)).items():
                total[name] = total.get(name, 0) + number
    except (OSError, ValueError):
        pass  # it has ended
    return total


def measure(stage: str, root: Path, out: Path, steps: int, environment: dict[str, str]) -> Any:
    options = ["--stage", stage, "--root", root, "--work", out, "--steps", steps]
    command = [sys.executable, __file__, *(str(option) for option in options)]
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **environment})
    peak = {"Pss:": 0, "Pss_Anon:": 0, "Pss_File:": 0}
    while process.poll() is None:
        now = memory_of(process.pid)
        peak = {name: max(value, now.get(name, 0)) for name, value in peak.items()}
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"{stage} failed")
    row = {
        "stage": stage,
        "seconds": round(time.perf_counter() - began, 1),
        "peak_pss_mb": round(peak["Pss:"] * 1024 / 1e6),
        "peak_anonymous_mb": round(peak["Pss_Anon:"] * 1024 / 1e6),
        "peak_file_mb": round(peak["Pss_File:"] * 1024 / 1e6),
    }
    rate = out / f"{stage}.rate"
    return row | ({"images_per_second": int(rate.read_text())} if rate.exists() else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run_stage(options.stage, options.root, options.work, options.steps)
        return
    work = Path(tempfile.mkdtemp(prefix="sween-photos-"))
    try:
        stored = write_photos(work / "photos", options.images)
        rows = []
        for stage in STAGES:
            limit = 10**12 if stage == "held" else 0  # nothing fits: everything is streamed
            environment = {CACHE_VARIABLE: str(work / "cache"), MEMORY_VARIABLE: str(limit)}
            rows.append(measure(stage, work / "photos", work, options.steps, environment))
            print(rows[-1], flush=True)  # noqa: T201
        decoded = max(path.stat().st_size for path in (work / "cache").glob("*.uint8"))
    finally:
        shutil.rmtree(work)
    if options.out is not None:
        content = {
            "command": f"python benchmarks/data_memory.py --images {options.images} "
            f"--steps {options.steps}",
            "images": options.images,
            "photo_bytes": stored,
            "decoded_bytes": decoded,
            "image_size": IMAGE_SIZE,
            "batch_size": BATCH,
            "stages": rows,
            "environment": describe_environment(),
        }
        write_json(options.out, content)


if __name__ == "__main__":
    main()
