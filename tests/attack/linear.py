"""A linear classifier, whose smoothed form is known: the border stays where it is."""

import torch
from torch import nn

from sween.data.dataset import Dataset, Split, StoredPixels
from sween.ensemble import LoadedEnsemble
from sween.models import Manifest
from sween.smoothing import SmoothedClassifier

SHAPE = (1, 4, 4)
SIGMA = 0.25


class Linear(nn.Module):
    """Two classes on the sides of a hyperplane through the grey image."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(SHAPE, generator=generator)
        self.normal = nn.Parameter(normal / normal.norm())

    def signed_distance(self, images: torch.Tensor) -> torch.Tensor:
        return ((images - 0.5) * self.normal).flatten(1).sum(dim=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logit = 20 * self.signed_distance(images)
        return torch.stack([-logit, logit], dim=1)


def dataset(model: Linear, count: int, seed: int) -> Dataset:
    """Grey images at distances of sigma / 2 to 3 sigma from the border, clear of the box."""
    generator = torch.Generator().manual_seed(seed)
    side = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    wanted = side * (0.5 + 2.5 * torch.rand(count, generator=generator)) * SIGMA
    noise = 0.04 * torch.randn(count, *SHAPE, generator=generator)
    with torch.no_grad():
        base = 0.5 + noise
        gap = wanted - model.signed_distance(base)
        images = base + gap.view(-1, 1, 1, 1) * model.normal
        pixels = (images * 255).round().to(torch.uint8)
        labels = (model.signed_distance(pixels.float() / 255) > 0).long()

    split = Split("test", StoredPixels(pixels), labels)
    return Dataset(
        name="lines",
        class_names=("below", "above"),
        image_shape=SHAPE,
        mean=(0.0,),
        std=(1.0,),
        augmentation="none",
        train=split,
        weights=split,
        test=split,
    )


def loaded(model: nn.Module) -> LoadedEnsemble:
    manifest = Manifest(
        arch="tests:linear",
        num_classes=2,
        image_shape=SHAPE,
        sigma=SIGMA,
        dataset="lines",
        class_names=("below", "above"),
        training={},
        fingerprint="0" * 64,
    )
    return LoadedEnsemble([model], [manifest], ["linear"])


def smoothed(ensemble: LoadedEnsemble) -> SmoothedClassifier:
    return SmoothedClassifier(ensemble, sigma=SIGMA, num_classes=2, name=ensemble.name)
