"""The paper's CIFAR ResNets of depth 6n + 2 (He et al. 2016), with 1x1-convolution shortcuts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    """The identity, or a 1x1 convolution with batch norm where the shape changes."""
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
    )


def initialise(model: nn.Module) -> None:
    """He initialisation of the convolutions."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = shortcut(channels_in, channels_out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """Three stages of n blocks with 16, 32 and 64 channels, times `width`; normalised input.

    Attributes:
        activation_ranges: the largest input of the first convolution and of each 3x3 convolution of
            the blocks that 8-bit integers hold, float32 (2 * blocks + 1,); None: not measured.
    """

    activation_ranges: torch.Tensor | None

    def __init__(self, depth: int, num_classes: int, channels: int = 3, *, width: int = 1) -> None:
        super().__init__()
        if (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2, got {depth}")
        blocks, (first, second, third) = (depth - 2) // 6, (16 * width, 32 * width, 64 * width)
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.stage1 = self._stage(first, first, blocks, stride=1)
        self.stage2 = self._stage(first, second, blocks, stride=2)
        self.stage3 = self._stage(second, third, blocks, stride=2)
        self.fc = nn.Linear(third, num_classes)
        self.register_buffer("activation_ranges", None)
        initialise(self)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """A checkpoint has activation ranges only if they were measured."""
        if f"{prefix}activation_ranges" in state_dict:
            blocks = len(self.stage1) + len(self.stage2) + len(self.stage3)
            self.activation_ranges = self.fc.weight.new_zeros(2 * blocks + 1)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @staticmethod
    def _stage(channels_in: int, channels_out: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(channels_in, channels_out, stride)
        rest = [BasicBlock(channels_out, channels_out, 1) for _ in range(blocks - 1)]
        return nn.Sequential(first, *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.stage3(self.stage2(self.stage1(out)))
        logits: torch.Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits
