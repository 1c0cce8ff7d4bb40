"""A caller's own architectures, as the tests name them: `tests.models.factories:NAME`."""

from typing import Any

import torch
from torch import nn

from sween.models.normalize import Normalize

PIXELS = 64


def with_classes(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, num_classes))


def with_any_keyword(width: int = 8, **options: Any) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, options["num_classes"])
    )


def without_classes() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 10))


def of_small_photos(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes))


def with_dropout(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(PIXELS, num_classes))


class AsClass(nn.Sequential):
    def __init__(self, *, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(PIXELS, num_classes))


def fails_in_training(num_classes: int) -> nn.Module:
    def fail(module: nn.Module, _: Any) -> None:
        if module.training:
            raise ValueError("not this batch")

    model = with_classes(num_classes)
    model.register_forward_pre_hook(fail)
    return model


def pooled(num_classes: int) -> nn.Module:
    """For colour images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, num_classes),
    )  # fmt: skip


MEAN, STD = 0.25, 0.5


def behind_normalisation(num_classes: int) -> nn.Module:
    """`pooled` as a network that was trained on normalised images."""
    return nn.Sequential(Normalize([MEAN] * 3, [STD] * 3), pooled(num_classes))


def always_five() -> nn.Module:
    return pooled(5)


def with_shared_layer(num_classes: int) -> nn.Module:
    network = nn.ModuleDict({"network": pooled(num_classes)})
    network["head"] = network["network"].get_submodule("4")
    return network


def seven_classes() -> nn.Module:
    return pooled(7)


class Twice(nn.Module):
    """Returns its logits and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.network = pooled(5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.network(x), x


def twice() -> nn.Module:
    return Twice()


def not_a_module(num_classes: int) -> list[int]:
    return [num_classes]


NOT_CALLABLE = 10
