"""Small networks, classifiers and images for tests of several packages."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import nn

from sween.ensemble import WeightedEnsemble
from sween.models import create_model
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier

ZOO = "digits-sween3-gaussian-sigma0.50"
SHAPE = (1, 8, 8)
SETTINGS = CertifySettings(n0=130, n=750)
FEW = (2, 2, 2, 2, 2, 2, 2, 16)
"""Rows of the passes that show what a member's code does."""
PROBED = len(FEW) + 7
"""Forward passes before the first vote: three more to prepare it, four for its batch-mates."""


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0))


def members() -> list[nn.Module]:
    made = []
    for seed, arch in enumerate(("digits-mlp", "digits-conv", "digits-resnet")):
        model = create_model(arch, num_classes=10, image_shape=SHAPE, seed=seed)
        with torch.no_grad():  # sharp enough for exits to happen, undecided enough to be hard
            for parameter in model.parameters():
                parameter.mul_(1.5)
        made.append(model)
    return made


def ensemble() -> WeightedEnsemble:
    return WeightedEnsemble(members(), [0.2, 0.5, 0.3])


def smoothed(
    model: nn.Module | None = None, *, sigma: float = 0.5, num_classes: int = 10, **options: Any
) -> SmoothedClassifier:
    """A classifier, by default of the ensemble above."""
    return SmoothedClassifier(model or ensemble(), sigma=sigma, num_classes=num_classes, **options)


def counts(certificates: Sequence[Certificate]) -> list[tuple[tuple[int, ...], ...]]:
    return [
        (row.selection_counts, row.estimation_counts, (row.member_evaluations,))
        for row in certificates
    ]


class Computed(nn.Module):
    """A network without parameters, given as a function of its batch."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def constant(*logits: float) -> Computed:
    return Computed(lambda x: torch.tensor(logits).expand(len(x), len(logits)))


def by_score(score: Callable[[torch.Tensor], torch.Tensor]) -> Computed:
    """Class 0 for images (rows of pixels) with a positive score, else class 1."""

    def logits(x: torch.Tensor) -> torch.Tensor:
        own = score(x.flatten(1))
        return torch.stack([own, -own], dim=1)

    return Computed(logits)


class SmallMemory(nn.Module):
    """Two classes by the sum; out of memory on more than `room` rows, after `fits` such passes."""

    def __init__(self, room: int, fits: int = 0) -> None:
        super().__init__()
        self.room, self.fits = room, fits

    def __deepcopy__(self, memo: object) -> Self:
        return self  # the prepared copy counts along

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.room:
            if self.fits == 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            self.fits -= 1
        total = x.flatten(1).sum(1)
        return torch.stack([total - 32, 32 - total], dim=1)


class Batch:
    """Images as the pipeline reads them, without labels."""

    def __init__(self, batch: torch.Tensor) -> None:
        self.batch = batch

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        return self.batch[list(positions)]

    def index(self, position: int) -> int:
        return position

    def label(self, position: int) -> None:
        return None
