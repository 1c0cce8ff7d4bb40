"""One readable training loop, from a config to a run folder."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.data.dataset import Dataset, Split
from sween.errors import BadInput
from sween.models import Manifest, check_member, create_model, save_checkpoint
from sween.progress import Advance, track
from sween.records import RowWriter
from sween.runs import run_folder
from sween.seeding import standard_normal, torch_seed
from sween.training.augment import crop_flip
from sween.training.config import TrainConfig
from sween.training.objectives import OBJECTIVES


def train(
    config: TrainConfig,
    dataset: Dataset,
    out: Path,
    *,
    device: torch.device | None = None,
    quiet: bool = False,
) -> nn.Module:
    """Train one candidate with noise into the run folder `out`.

    On a CPU the weights depend on the config, the data and the versions of the environment alone.
    The test split is never touched; accuracy is watched on noisy images of the weight-solving
    split. A finished folder of the same config is trained again from the start.

    Returns:
        The trained network, in evaluation mode, on `device`.
    """
    device = device or torch.device("cpu")
    _check_dataset(config, dataset)
    model = create_model(
        config.arch,
        num_classes=dataset.num_classes,
        image_shape=dataset.image_shape,
        mean=dataset.mean,
        std=dataset.std,
        seed=config.seed,
    ).to(device)
    check_member(model, num_classes=dataset.num_classes, image_shape=dataset.image_shape)
    steps = config.epochs * _steps_per_epoch(config, dataset.train)
    with run_folder(out, config.as_dict(), rows="metrics.jsonl") as path:
        path.unlink(missing_ok=True)
        with (
            torch.random.fork_rng(devices=[]),
            RowWriter(path) as metrics,
            track(f"train {config.arch}", steps, quiet=quiet) as advance,
        ):
            # A caller's own network may draw for itself, as dropout does.
            torch.default_generator.manual_seed(torch_seed(config.seed, "layers"))
            _fit(model, config, dataset, device, metrics, advance)
    manifest = Manifest(
        arch=config.arch,
        num_classes=dataset.num_classes,
        image_shape=dataset.image_shape,
        dataset=dataset.name,
        class_names=dataset.class_names,
        sigma=config.sigma,
        training=config.as_dict(),
    )
    save_checkpoint(model, out / "model.safetensors", manifest)
    return model.eval()


def _check_dataset(config: TrainConfig, dataset: Dataset) -> None:
    if dataset.name != config.dataset:
        raise BadInput("dataset", expected=config.dataset, got=dataset.name, fix="pass that one")
    missing = sorted(set(range(dataset.num_classes)) - set(dataset.train.labels.tolist()))
    if missing:
        names = ", ".join(dataset.class_names[label] for label in missing)
        raise BadInput(
            f"{dataset.name}: training images",
            expected="some of every class",
            got=f"none of {names}",
            fix="add images or remove the class",
        )


def _steps_per_epoch(config: TrainConfig, split: Split) -> int:
    return math.ceil(len(split) / config.batch_size)


def _fit(
    model: nn.Module,
    config: TrainConfig,
    dataset: Dataset,
    device: torch.device,
    metrics: RowWriter,
    advance: Advance,
) -> None:
    objective = OBJECTIVES[config.method]
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov and config.momentum > 0,
    )
    steps = _steps_per_epoch(config, dataset.train)
    for epoch in range(config.epochs):
        generator = torch.Generator(device=device)
        generator.manual_seed(torch_seed(config.seed, "training", block=epoch))
        order = torch.randperm(len(dataset.train), generator=generator, device=device).tolist()
        model.train()
        losses: list[float] = []
        for step in range(steps):
            positions = order[step * config.batch_size : (step + 1) * config.batch_size]
            images = dataset.train.images(positions).to(device)
            labels = dataset.train.labels[positions].to(device)
            if dataset.augmentation == "crop-flip":
                images = crop_flip(images, padding=dataset.crop_padding, generator=generator)
            noise = torch.randn(images.shape, generator=generator, device=device)
            rate = learning_rate(config, (epoch * steps + step) / (config.epochs * steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = objective(model, images, labels, noise, config.sigma)
            _check_finite(loss.item(), epoch, step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            advance(1, f"epoch {epoch + 1}/{config.epochs}  loss {losses[-1]:.3f}")
        row: dict[str, Any] = {"epoch": epoch + 1, "loss": sum(losses) / len(losses)}
        row["noisy_accuracy"] = noisy_accuracy(model, dataset.weights, config.sigma, config.seed)
        _check_finite(row["noisy_accuracy"], epoch, steps - 1)  # no loss follows the last step
        metrics.append([row])


def _check_finite(value: float, epoch: int, step: int) -> None:
    if not math.isfinite(value):
        raise BadInput(
            f"training diverged at epoch {epoch + 1}, step {step + 1}",
            expected="a finite loss",
            got=value,
            fix="lower --learning-rate",
        )


def learning_rate(config: TrainConfig, progress: float) -> float:
    """The rate at a share of the run: up over the first fifth, then down to 0 by a cosine."""
    if config.schedule == "constant":
        return config.learning_rate
    warm = 0.2
    if progress < warm:
        return config.learning_rate * (0.1 + 0.9 * progress / warm)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (progress - warm) / (1 - warm)))


@torch.inference_mode()
def noisy_accuracy(
    model: nn.Module, split: Split, sigma: float, seed: int, *, batch_size: int = 500
) -> float:
    """Accuracy on one fixed noisy copy of each image of a held-out split; NaN if a logit is."""
    model.eval()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    right = 0
    for block, start in enumerate(range(0, len(split), batch_size)):
        positions = range(start, min(start + batch_size, len(split)))
        images = split.images(positions).to(device)
        noise = standard_normal(
            tuple(images.shape),
            seed=seed,
            purpose="validation",
            example=0,
            block=block,
            device=device,
        )
        logits = model(images + sigma * noise)
        if not torch.isfinite(logits).all():
            return math.nan
        right += int((logits.argmax(dim=1).cpu() == split.labels[list(positions)]).sum())
    return right / len(split)
