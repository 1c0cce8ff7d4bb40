"""Seconds per epoch of 48,000 CIFAR-sized images, compared with a plain eager float32 loop.

    python benchmarks/training_speed.py --arch resnet20 --arch resnet110 --batch-size 256 --out FILE

Pixels are random: speed does not depend on them. Both loops crop, flip and add noise on the device.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from sween.data.dataset import Dataset, Split, StoredPixels
from sween.models import create_model
from sween.run_folder import describe_environment, write_json
from sween.runs import TrainingRun
from sween.training import TrainConfig, step
from sween.training.augment import apply_crop_flips, draw_crop_flips
from sween.training.trainer import Trainer

IMAGES = 48_000


def synthetic_cifar(images: int = IMAGES) -> Dataset:
    """A data set of CIFAR-10's shapes with random pixels and labels."""
    generator = torch.Generator().manual_seed(0)

    def split(name: str, count: int) -> Split:
        pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return Split(name, StoredPixels(pixels), torch.arange(count) % 10)

    return Dataset(
        name="cifar10",
        class_names=tuple("0123456789"),
        image_shape=(3, 32, 32),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augmentation="crop-flip",
        train=split("train", images),
        weights=split("weights", 500),
        test=split("test", 10),
    )


def fast_epochs(config: TrainConfig, dataset: Dataset, device: torch.device) -> dict[str, float]:
    """Seconds of each epoch after the first, which compiles; and the seconds of that one."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, dataset, Path(folder) / "run", device=device)
        for _ in trainer.run():
            pass
        rows = TrainingRun.read(trainer.out).metrics
    seconds = sorted(row.seconds for row in rows[1:])
    return {"epoch": seconds[len(seconds) // 2], "first_epoch": rows[0].seconds}


def plain_epoch(config: TrainConfig, dataset: Dataset, device: torch.device, share: float) -> float:
    """Seconds of an epoch of a plain eager float32 loop, from a share of its steps."""
    model = create_model(config.arch, num_classes=10, image_shape=(3, 32, 32)).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    pixels = dataset.train.pixels.load(range(len(dataset.train))).to(device)
    labels = dataset.train.labels.to(device)
    generator = torch.Generator(device=device).manual_seed(0)
    steps = len(dataset.train) // config.batch_size
    measured = max(2, int(share * steps))

    def plain_step(position: int) -> None:
        picks = slice(position * config.batch_size, (position + 1) * config.batch_size)
        drawn = draw_crop_flips(config.batch_size, padding=4, generator=generator, device=device)
        images = apply_crop_flips(pixels[picks], drawn, padding=4).float() / 255
        noise = torch.randn(images.shape, generator=generator, device=device)
        loss = functional.cross_entropy(model(images + config.sigma * noise), labels[picks])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for position in range(3):
        plain_step(position)
    _synchronize(device)
    started = time.perf_counter()
    for position in range(measured):
        plain_step(position)
    _synchronize(device)
    return (time.perf_counter() - started) * steps / measured


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--plain-share", type=float, default=0.3)
    parser.add_argument("--compile-mode", default=step.COMPILE_MODE)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    step.COMPILE_MODE = options.compile_mode
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = synthetic_cifar(options.images)
    rows = []
    for arch in options.arch or ["resnet20"]:
        config = TrainConfig(
            dataset="cifar10",
            arch=arch,
            sigma=0.5,
            epochs=options.epochs,
            batch_size=options.batch_size,
        )
        row = {"arch": arch, "batch_size": options.batch_size, "compile": options.compile_mode}
        row |= fast_epochs(config, dataset, device)
        row["plain_epoch"] = plain_epoch(config, dataset, device, options.plain_share)
        row["ratio"] = row["plain_epoch"] / row["epoch"]
        rows.append(row)
        print(  # noqa: T201
            f"{arch:10} {row['epoch']:.3f} s an epoch, plain float32 loop "
            f"{row['plain_epoch']:.3f} s, {row['ratio']:.1f} times; "
            f"first epoch {row['first_epoch']:.1f} s",
            flush=True,
        )
    if options.out is not None:
        content = {"images": options.images, "rows": rows, "environment": describe_environment()}
        write_json(options.out, content)


if __name__ == "__main__":
    main()
