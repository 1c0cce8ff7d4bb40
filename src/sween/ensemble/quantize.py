"""Prepares an ensemble of CIFAR ResNets for int8 precision: ranges of their activations."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from sween.arguments import whole_number
from sween.data.dataset import Dataset
from sween.ensemble.folder import check_dataset, write_config
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput
from sween.models import save_checkpoint
from sween.models.activation_ranges import measure_ranges
from sween.models.cifar_resnet import CifarResNet
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.progress import track
from sween.seeding import standard_normal

BATCH = 100
"""Images at a time."""


def quantize(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    *,
    images: int = 250,
    seed: int = 0,
    quiet: bool = True,
) -> None:
    """Measure the activation ranges of all members on noisy training images.

    int8 precision then uses them; other precisions are as before. A checkpoint's ranges are part of
    its fingerprint, and so of what is certified: they never depend on the certified images.

    Args:
        loaded: of CIFAR ResNets.
        dataset: that of its members.
        images: how many training images, evenly spaced, with one noise draw each.
        seed: of the noise.
        quiet: no progress display.
    """
    for name, member in zip(loaded.member_names, loaded.members, strict=True):
        if not any(isinstance(part, CifarResNet) for part in member.modules()):
            raise BadInput(
                f"member {name}", expected="a CIFAR ResNet", got="another network",
                fix="use float16 precision, which every network has",
            )  # fmt: skip
    check_dataset(loaded, dataset)
    count = len(dataset.train)
    if not 1 <= whole_number("images", images) <= count:
        raise BadInput("images", expected=f"1 to {count}", got=images, fix=f"try {min(250, count)}")
    device = device_of(loaded)

    def noisy() -> Iterator[torch.Tensor]:
        positions = [i * count // images for i in range(images)]
        with track("measure activations", images, quiet=quiet) as advance:
            for start in range(0, images, BATCH):
                batch = dataset.train.images(positions[start : start + BATCH])
                noise = standard_normal(
                    tuple(batch.shape),
                    seed=seed,
                    purpose="activation-ranges",
                    example=start,
                    block=0,
                    device=torch.device("cpu"),  # the same noise wherever the network runs
                )
                yield (batch + loaded.sigma * noise).to(device)
                advance(len(batch), "")

    with evaluating(loaded):
        measure_ranges(loaded, noisy())


def write_quantized(
    loaded: LoadedEnsemble, building: Path, *, images: int, seed: int, as_bytes: bool = False
) -> None:
    """Write members with their ranges, and the config, into a folder of `new_ensemble`.

    Each manifest's `training` says how the ranges were measured and what the fingerprint of the
    checkpoint was without them.
    """
    manifests = []
    for name, member, known in zip(
        loaded.member_names, loaded.members, loaded.manifests, strict=True
    ):
        ranges = {"images": images, "seed": seed, "of": known.fingerprint}
        manifest = dataclasses.replace(
            known, training={**known.training, "activation_ranges": ranges}
        )
        path = building / "members" / f"{name}.safetensors"
        manifests.append(save_checkpoint(member, path, manifest, as_bytes=as_bytes))
    write_config(loaded, manifests, {"weights": loaded.weights.tolist()}, building)
