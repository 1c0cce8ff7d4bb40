"""Small networks for 8x8 digits, cheap enough to train and certify on two CPU cores."""

import torch
from torch import nn


def digits_mlp(num_classes: int, channels: int = 1, width: int = 256) -> nn.Module:
    """A two-layer perceptron on the flattened image."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * 64, width),
        nn.ReLU(),
        nn.Linear(width, width // 2),
        nn.ReLU(),
        nn.Linear(width // 2, num_classes),
    )


def digits_conv(num_classes: int, channels: int = 1, width: int = 16) -> nn.Module:
    """Three convolutions, the second of stride 2, and a linear layer.

    No mean pooling before the linear layer: the position of strokes distinguishes digits.
    """
    return nn.Sequential(
        *_conv(channels, width),
        nn.ReLU(),
        *_conv(width, 2 * width, stride=2),
        nn.ReLU(),
        *_conv(2 * width, 2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, num_classes),
    )


def _conv(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
    )


class DigitsResNet(nn.Module):
    """One strided convolution, one residual block of `width` channels, a linear layer."""

    def __init__(self, num_classes: int, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.stem = _conv(channels, width, stride=2)
        self.block = _conv(width, width)
        self.head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(width * 16, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.stem(x))
        logits: torch.Tensor = self.head(out + self.block(out))
        return logits
