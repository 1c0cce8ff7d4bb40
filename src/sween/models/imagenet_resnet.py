"""ResNet-18, 34 and 50 for larger images (He et al. 2016; stride in the 3x3 of a bottleneck)."""

import torch
from torch import nn
from torch.nn import functional

from sween.models.cifar_resnet import BasicBlock, initialise, shortcut


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up by four, and a shortcut."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.shortcut = shortcut(channels_in, channels_out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return functional.relu(out + self.shortcut(x))


_STAGES: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ImageNetResNet(nn.Module):
    """Stem, four stages of 64 to 512 channels, mean pooling; expects normalised input."""

    def __init__(self, depth: int, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        block, counts = _STAGES[depth]
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        stages: list[nn.Module] = []
        channels_in = 64
        for number, count in enumerate(counts):
            width = 64 * 2**number
            for position in range(count):
                stride = 2 if number > 0 and position == 0 else 1
                stages.append(block(channels_in, width, stride))
                channels_in = width * (Bottleneck.expansion if block is Bottleneck else 1)
        self.blocks = nn.Sequential(*stages)
        self.fc = nn.Linear(channels_in, num_classes)
        initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.pool(functional.relu(self.bn1(self.conv1(x))))
        logits: torch.Tensor = self.fc(self.blocks(out).mean(dim=(2, 3)))
        return logits
