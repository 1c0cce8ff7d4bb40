"""Well-known networks as their users write them: nothing here knows of sween.

    cd benchmarks && sween bench strangers:vit_small --image-size 224

Each factory takes the number of classes; images are [0,1] pixels.
"""

import torch
from torch import nn
from torch.nn import functional


class Normalized(nn.Module):
    """A network with the usual normalisation in front."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None])
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225])[:, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network((x - self.mean) / self.std)


def _down(inside: int, outside: int, stride: int) -> nn.Module:
    if stride == 1 and inside == outside:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class Basic(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.relu, self.down = nn.ReLU(inplace=True), _down(inside, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.down(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1; `wide` multiplies the channels of the 3x3 convolution."""

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int, wide: int = 2) -> None:
        super().__init__()
        middle, outside = width * wide, width * self.expansion
        self.conv1 = nn.Conv2d(inside, middle, 1, bias=False)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, padding=1, bias=False)
        self.conv3 = nn.Conv2d(middle, outside, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(middle), nn.BatchNorm2d(middle)
        self.bn3 = nn.BatchNorm2d(outside)
        self.relu, self.down = nn.ReLU(inplace=True), _down(inside, outside, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, stages of blocks, pooling and a linear layer."""

    def __init__(
        self,
        stem: list[nn.Module],
        inside: int,
        block: type[Basic] | type[Bottleneck],
        counts: tuple[int, ...],
        widths: tuple[int, ...],
        num_classes: int,
    ) -> None:
        super().__init__()
        layers = [*stem]
        for stage, (count, width) in enumerate(zip(counts, widths, strict=True)):
            for position in range(count):
                layers.append(block(inside, width, 2 if stage and not position else 1))
                inside = width * block.expansion
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(inside, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.layers(x), 1), 1))


def _small_stem(width: int) -> list[nn.Module]:
    conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]


def _large_stem() -> list[nn.Module]:
    conv = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
    return [conv, nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]


def resnet110(num_classes: int = 10) -> nn.Module:
    """For CIFAR, as Cohen et al. have it."""
    widths = (16, 32, 64)
    return Normalized(ResNet(_small_stem(16), 16, Basic, (18, 18, 18), widths, num_classes))


def resnet18_cifar(num_classes: int = 10) -> nn.Module:
    """ResNet-18 with a 3x3 convolution of stride 1 as its stem."""
    widths = (64, 128, 256, 512)
    return Normalized(ResNet(_small_stem(64), 64, Basic, (2, 2, 2, 2), widths, num_classes))


def wide_resnet50_2(num_classes: int = 1000) -> nn.Module:
    widths = (64, 128, 256, 512)
    return Normalized(ResNet(_large_stem(), 64, Bottleneck, (3, 4, 6, 3), widths, num_classes))


class PreActivation(nn.Module):
    """Batch norm and relu before each convolution."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        same = inside == outside
        self.down = None if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(x))
        shortcut = x if self.down is None else self.down(out)
        out = self.conv2(functional.relu(self.bn2(self.conv1(out))))
        return out + shortcut


def wide_resnet28_10(num_classes: int = 10) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    inside = 16
    for stage, outside in enumerate((160, 320, 640)):
        for position in range(4):
            stride = 2 if stage and not position else 1
            layers.append(PreActivation(inside, outside, stride))
            inside = outside
    head = [nn.BatchNorm2d(640), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Normalized(nn.Sequential(*layers, *head, nn.Linear(640, num_classes)))


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        mixed = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, size: int, num_classes: int, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_small(
    num_classes: int = 1000, image_shape: tuple[int, int, int] = (3, 224, 224)
) -> nn.Module:
    return Normalized(VisionTransformer(image_shape[1], num_classes))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1))) * self.scale
        return x + out.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext_tiny(num_classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    inside = 96
    for count, width in ((3, 96), (3, 192), (9, 384), (3, 768)):
        if width != inside:
            layers += [ChannelNorm(inside, eps=1e-6), nn.Conv2d(inside, width, 2, 2)]
        layers += [ConvNeXtBlock(width) for _ in range(count)]
        inside = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768, eps=1e-6)]
    return Normalized(nn.Sequential(*layers, *head, nn.Linear(768, num_classes)))
