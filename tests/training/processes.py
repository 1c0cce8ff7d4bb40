"""What the processes of `test_distributed.py` run, and what differs between them."""

import dataclasses
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.data import Dataset, load_dataset
from sween.data.dataset import StoredPixels
from sween.errors import DataError
from sween.models import Manifest, create_model, save_checkpoint
from sween.training import TrainConfig, train_many
from sween.training.distributed import GlobalBatchStatistics, Processes
from sween.training.torchrun import end_process, start_processes
from sween.training.trainer import Trainer

from .datasets import config, few_digits, photos

BATCH = 15  # not a multiple of 2
TEACHER = "teacher.safetensors"
RUNS: dict[str, dict[str, Any]] = {
    "gaussian": {"average": 0.9, "copies": 2, "label_smoothing": 0.1},
    "macer": {"copies": 4},
    "consistency": {"optimizer": "muon"},
    "catrs": {"copies": 2, "attack_from": 1, "attack_steps": 2, "votes": 20},
}


def wanted(method: str, out: Path | None = None) -> TrainConfig:
    fields = RUNS[method] | {"arch": "digits-resnet", "epochs": 3, "batch_size": BATCH}
    if method == "catrs":
        assert out is not None
        fields["teacher"] = str(out / TEACHER)
    return config(method=method, **fields)


def write_teacher(out: Path) -> None:
    """A network for `catrs`; before the processes start, so that all find the same one."""
    dataset = few_digits(50)
    shape = dataset.image_shape
    manifest = Manifest(
        arch="digits-mlp",
        num_classes=10,
        image_shape=shape,
        dataset=dataset.name,
        class_names=dataset.class_names,
        sigma=0.25,
        training={},
    )
    model = create_model("digits-mlp", num_classes=10, image_shape=shape, seed=0)
    save_checkpoint(model.eval(), out / TEACHER, manifest)


def wanted_photos() -> TrainConfig:
    arch = "tests.training.processes:smooth"  # which keys the noise: not __main__
    return config(dataset="image_folder", arch=arch, batch_size=5, epochs=1)


def smooth(num_classes: int) -> nn.Module:
    """A network of batch norms without kinks.

    Behind a relu, one activation that is 0 but for rounding can change gradients by a twentieth.
    """

    def block(channels: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(channels, 16, 3, stride=stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(16), nn.Tanh()]

    pooling = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes)]
    return nn.Sequential(*block(3, 1), *block(16, 2), *block(16, 1), *pooling)


def normalise(norm: nn.Module, values: torch.Tensor, part: slice) -> dict[str, torch.Tensor]:
    """Output and gradients of a batch norm for a part of a batch, and its state."""
    own = values[part].clone().requires_grad_()
    output = norm(own)
    (
        output.sin() * torch.arange(len(values))[part].view(-1, *[1] * (values.ndim - 1))
    ).sum().backward()
    assert own.grad is not None
    made = {"output": output.detach(), "gradient": own.grad}
    made |= {
        f"grad.{name}": one.grad for name, one in norm.named_parameters() if one.grad is not None
    }
    return made | {f"state.{name}": one.clone() for name, one in norm.state_dict().items()}


def norms() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Batch norms of every kind, each with a batch whose mean is far from 0."""
    generator = torch.Generator().manual_seed(0)

    def values(*shape: int) -> torch.Tensor:
        return 5 + 3 * torch.randn(BATCH, *shape, generator=generator)

    made: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "1d": (nn.BatchNorm1d(4), values(4)),
        "1d long": (nn.BatchNorm1d(4, momentum=None), values(4, 6)),
        "2d": (nn.BatchNorm2d(3), values(3, 5, 4)),
        "3d": (nn.BatchNorm3d(2, affine=False, eps=0.1), values(2, 3, 2, 2)),
        "without statistics": (nn.BatchNorm2d(3, track_running_stats=False), values(3, 2, 2)),
        "evaluating": (nn.BatchNorm1d(4).eval(), values(4)),
    }
    for norm, _ in made.values():
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 2.0, generator=generator)
    return made


def differing_pixel() -> Dataset:
    """Digits with one pixel changed in process 1."""
    dataset = load_dataset("digits")
    pixels = dataset.train.pixels.load_all().clone()
    pixels[0, 0, 0, 0] += int(os.environ["RANK"])
    train = dataclasses.replace(dataset.train, pixels=StoredPixels(pixels))
    name = f"{__name__}:differing_pixel"
    return dataclasses.replace(dataset, name=name, train=train)


def missing_in_one() -> Dataset:
    """Digits that process 1 does not find."""
    if os.environ["RANK"] == "1":
        raise DataError("digits", expected="files", got="none", fix="pass `data_root`")
    return dataclasses.replace(load_dataset("digits"), name=f"{__name__}:missing_in_one")


def fails_in_one(num_classes: int) -> nn.Module:
    """A network that runs out of memory in process 1, in training."""

    def fail(module: nn.Module, _: Any) -> None:
        if module.training and os.environ["RANK"] == "1":
            raise MemoryError("no memory left in process 1")

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
    model.register_forward_pre_hook(fail)
    return model


def train_all(processes: Processes, out: Path) -> None:
    """Every run of `RUNS` at once, and photos with augmentation."""
    configs, outs = [wanted(method, out) for method in RUNS], [out / method for method in RUNS]
    train_many(configs, few_digits(50), outs, quiet=True, processes=processes)
    train_many([wanted_photos()], photos(), [out / "photos"], quiet=True, processes=processes)


def main(out: Path) -> None:
    processes = start_processes()
    assert processes is not None
    made = {}
    for name, (norm, values) in norms().items():
        with GlobalBatchStatistics():
            made[name] = normalise(norm, values, processes.part(BATCH))
    torch.save(made, out / f"norms{processes.rank}")
    train_all(processes, out)
    stopped = out / "stopped"
    trainer = Trainer(
        wanted("gaussian"), few_digits(50), stopped, device=torch.device("cpu"), processes=processes
    )
    steps = trainer.run()
    list(itertools.islice(steps, 5))  # in the second of three epochs
    steps.close()
    end_process()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
