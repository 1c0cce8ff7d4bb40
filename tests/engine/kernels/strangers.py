"""CIFAR ResNets and near misses as strangers write them, for tests of recognising them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Call = Callable[[torch.Tensor], torch.Tensor]


class Function(nn.Module):
    """A module that computes a function."""

    def __init__(self, function: Call) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Block(nn.Module):
    """A residual block whose parts can be exchanged; see `ResNet`."""

    def __init__(self, inside: int, outside: int, stride: int, options: dict[str, Any]) -> None:
        super().__init__()
        own = {"bias": options.get("bias", False), **options.get("convolution", {})}
        norm = options.get("norm", nn.BatchNorm2d)
        second = options.get("second_stride", False)
        self.conv1 = nn.Conv2d(inside, outside, 3, 1 if second else stride, padding=1, **own)
        self.norm1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, stride if second else 1, padding=1, **own)
        self.norm2 = norm(outside)
        self.relu = options.get("relu", functional.relu)
        self.join = options.get("join", lambda out, x: out + x)
        self.last = options.get("last", self.relu)
        if stride == 1 and inside == outside:
            self.down: nn.Module = nn.Identity()
        else:
            self.down = options.get("shortcut", convolution_shortcut)(inside, outside, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        joined: torch.Tensor = self.last(self.join(out, self.down(x)))
        return joined


def convolution_shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class ResNet(nn.Module):
    """A CIFAR ResNet by its parts.

    Options: counts, channels, first (convolution), bias, convolution, norm, relu, join, last,
    shortcut, second_stride, pool, head, before (of the image), block.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        counts = options.get("counts", (1, 1, 1))
        channels = options.get("channels", (16, 32, 64))
        self.before = options.get("before", nn.Identity())
        first = {"kernel_size": 3, "padding": 1, "bias": options.get("bias", False)}
        self.conv1 = nn.Conv2d(3, channels[0], **{**first, **options.get("first", {})})
        self.norm1 = options.get("norm", nn.BatchNorm2d)(channels[0])
        self.relu = options.get("relu", functional.relu)
        blocks, inside = list[nn.Module](), channels[0]
        for stage, (count, outside) in enumerate(zip(counts, channels, strict=True)):
            for position in range(count):
                stride = 2 if stage and not position else 1
                blocks.append(options.get("block", Block)(inside, outside, stride, options))
                inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.pool = options.get("pool", lambda x: x.mean((2, 3)))
        self.head = options.get("head", lambda inside: nn.Linear(inside, 10))(inside)
        self.after = options.get("after", nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.conv1(self.before(x))))
        logits: torch.Tensor = self.after(self.head(self.pool(self.blocks(out))))
        return logits


class PublishedNormalize(nn.Module):
    """The layer in front of the networks of Cohen et al.: its constants are not in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.means, self.sds = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.2, 0.21, 0.22])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = x.shape
        means = self.means.repeat((batch, height, width, 1)).permute(0, 3, 1, 2)
        sds = self.sds.repeat((batch, height, width, 1)).permute(0, 3, 1, 2)
        return (x - means) / sds


class Wrapped(nn.Module):
    """A network with its normalisation in the wrapper's code."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor([0.49, 0.48, 0.45])[None, :, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.get_buffer("mean")
        return self.network((x - mean) * 4.0)  # type: ignore[no-any-return]


class PreActivation(nn.Module):
    """A block with batch norm and relu before its convolutions."""

    def __init__(self, inside: int, outside: int, stride: int, _: dict[str, Any]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inside), nn.BatchNorm2d(outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        same = stride == 1 and inside == outside
        self.down = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.norm1(x))
        out = self.conv2(functional.relu(self.norm2(self.conv1(out))))
        return out + self.down(x)  # type: ignore[no-any-return]


class SqueezeExcite(Block):
    """A block that scales its channels by what it sees."""

    def __init__(self, inside: int, outside: int, stride: int, options: dict[str, Any]) -> None:
        super().__init__(inside, outside, stride, options)
        self.gate = nn.Conv2d(outside, outside, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out = out * torch.sigmoid(self.gate(out.mean((2, 3), keepdim=True)))
        return functional.relu(out + self.down(x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1."""

    def __init__(self, inside: int, outside: int, stride: int, _: dict[str, Any]) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride, padding=1),
            nn.ReLU(), nn.Conv2d(16, outside, 1),
        )  # fmt: skip
        same = stride == 1 and inside == outside
        self.down = nn.Identity() if same else nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.path(x) + self.down(x))


def _add_in_place(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out += x
    return out


def padded_shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    side = (outside - inside) // 2
    return Function(
        lambda x: functional.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, side, side), "constant")
    )


def _pooled_and_zeroed(inside: int, outside: int, stride: int) -> nn.Module:
    def apply(x: torch.Tensor) -> torch.Tensor:
        small = functional.avg_pool2d(x, 1, stride)
        return torch.cat((small, small.mul(0)), 1)

    return Function(apply)


def _with_zeros(inside: int, outside: int, stride: int) -> nn.Module:
    def apply(x: torch.Tensor) -> torch.Tensor:
        small = x[..., ::stride, ::stride]
        zeros = torch.zeros(len(x), outside - inside, *small.shape[2:])
        return torch.cat([zeros, small], dim=1)

    return Function(apply)


def _joined(fill: Callable[[torch.Tensor, int], list[torch.Tensor]]) -> Any:
    """A shortcut: every other pixel, among the channels that `fill` puts around it."""

    def shortcut(inside: int, outside: int, stride: int) -> nn.Module:
        return Function(
            lambda x: torch.cat(fill(x[:, :, ::stride, ::stride], outside - inside), dim=1)
        )

    return shortcut


def _constant(make: str, of: torch.Tensor, channels: int) -> torch.Tensor:
    made: torch.Tensor = getattr(of, make)(len(of), channels, *of.shape[2:])
    return made


def _picked_by_max_pooling(size: int) -> Any:
    def shortcut(inside: int, outside: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.MaxPool2d(size, stride),
            Function(lambda x: functional.pad(x, (0, 0, 0, 0, 0, outside - inside))),
        )

    return shortcut


class FunctionalHead(nn.Module):
    """A linear layer by its function."""

    def __init__(self, inside: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, inside) / 8)
        self.bias = nn.Parameter(torch.randn(10)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


class TwoHeads(nn.ModuleList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self
        return one(x) + other(x)  # type: ignore[no-any-return]


def _convolution_head(**options: Any) -> Any:
    return lambda inside: nn.Sequential(
        nn.Conv2d(inside, 10, **{"kernel_size": 1, **options}), nn.Flatten()
    )


def _branching(x: torch.Tensor) -> torch.Tensor:
    return x if float(x.mean()) > 0 else 2 * x


def _flatten_first(inside: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(inside, 10))


def _sequence(network: ResNet) -> nn.Module:
    """Its layers in one `nn.Sequential`, as short scripts have them."""
    stem = (network.conv1, network.norm1, nn.ReLU())
    pool = (nn.AvgPool2d(8), nn.Flatten())
    return nn.Sequential(*stem, *network.blocks, *pool, network.head)


ALIKE: dict[str, Callable[[], nn.Module]] = {
    "plain": ResNet,
    "depth 14": lambda: ResNet(counts=(2, 2, 2)),
    "depth 20": lambda: ResNet(counts=(3, 3, 3)),
    "a hundred classes": lambda: ResNet(head=lambda inside: nn.Linear(inside, 100)),
    "published normalisation": lambda: nn.Sequential(PublishedNormalize(), ResNet()),
    "normalised by a wrapper": lambda: Wrapped(ResNet()),
    "pixels from -1 to 1": lambda: ResNet(before=Function(lambda x: 2 * x - 1)),
    "in parallel": lambda: nn.DataParallel(ResNet()),
    "option A by padding": lambda: ResNet(shortcut=padded_shortcut),
    "option A by pooling": lambda: ResNet(shortcut=_pooled_and_zeroed),
    "option A by zeros": lambda: ResNet(shortcut=_with_zeros),
    "a shortcut without batch norm": lambda: ResNet(
        shortcut=lambda i, o, s: nn.Conv2d(i, o, 1, s, bias=True)
    ),
    "convolutions with a bias": lambda: ResNet(bias=True),
    "folded": lambda: ResNet(bias=True, norm=lambda _: nn.Identity()),
    "batch norm without parameters": lambda: ResNet(
        norm=lambda width: nn.BatchNorm2d(width, affine=False)
    ),
    "average pooling": lambda: ResNet(
        pool=lambda x: functional.avg_pool2d(x, x.size()[3]).view(x.size(0), -1)
    ),
    "adaptive pooling": lambda: ResNet(pool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),
    "squeezed pooling": lambda: ResNet(pool=lambda x: x.mean([-2, -1], keepdim=True).squeeze()),
    "dropout": lambda: ResNet(pool=nn.AdaptiveAvgPool2d((1, 1)), head=_flatten_first),
    "in place": lambda: ResNet(relu=nn.ReLU(inplace=True), join=_add_in_place),
    "clamped": lambda: ResNet(relu=lambda x: x.clamp(min=0)),
    "the shortcut first": lambda: ResNet(join=lambda out, x: x + out),
    "no bias at the end": lambda: ResNet(head=lambda inside: nn.Linear(inside, 10, bias=False)),
    "one sequence": lambda: _sequence(ResNet(relu=nn.ReLU())),
    "adaptive pooling by function": lambda: ResNet(
        pool=lambda x: functional.adaptive_avg_pool2d(x, (1, 1)).flatten(start_dim=1)
    ),
    "option A by new_zeros": lambda: ResNet(
        shortcut=_joined(lambda x, more: [x, _constant("new_zeros", x, more)])
    ),
    "option A by new_zeros on both sides": lambda: ResNet(
        shortcut=_joined(lambda x, more: [zeros := _constant("new_zeros", x, more // 2), x, zeros])
    ),
    "option A by zeros_like": lambda: ResNet(
        shortcut=_joined(lambda x, more: [torch.zeros_like(x), x])
    ),
    "option A by max pooling of single pixels": lambda: ResNet(shortcut=_picked_by_max_pooling(1)),
    "pooling of columns, then rows": lambda: ResNet(pool=lambda x: x.mean(3).mean(2)),
    "pooling of rows, then columns": lambda: ResNet(pool=lambda x: x.mean(2).mean(-1)),
    "pooling of columns, then rows, kept": lambda: ResNet(
        pool=lambda x: x.mean(-1, keepdim=True).mean(2, keepdim=True).flatten(1)
    ),
    "pooling of flattened pixels": lambda: ResNet(pool=lambda x: x.flatten(2).mean(2)),
    "pooling of pixels in a row": lambda: ResNet(
        pool=lambda x: x.view(x.size(0), x.size(1), -1).mean(-1)
    ),
    "batch norm of pixels": lambda: ResNet(before=nn.BatchNorm2d(3)),
    "batch norm of pixels without parameters": lambda: ResNet(
        before=nn.BatchNorm2d(3, affine=False)
    ),
    "a linear function": lambda: ResNet(head=FunctionalHead),
    "a linear function without bias": lambda: ResNet(
        head=lambda inside: FunctionalHead(inside, bias=False)
    ),
    "a 1x1 convolution at the end": lambda: ResNet(
        pool=nn.AdaptiveAvgPool2d(1), head=_convolution_head()
    ),
    "a 1x1 convolution without bias, squeezed": lambda: ResNet(
        pool=lambda x: x.mean((2, 3), keepdim=True),
        head=lambda inside: nn.Conv2d(inside, 10, 1, bias=False),
        after=Function(lambda x: x.squeeze(3).squeeze(2)),
    ),
    "a 1x1 convolution of two hundred classes": lambda: ResNet(
        pool=nn.AvgPool2d(8),
        head=lambda inside: nn.Conv2d(inside, 200, 1),
        after=Function(lambda x: x.view(len(x), -1)),
    ),
    "twice as wide": lambda: ResNet(channels=(32, 64, 128)),
    "three times as wide": lambda: ResNet(channels=(48, 96, 192), shortcut=padded_shortcut),
    "copies": lambda: ResNet(before=Function(lambda x: x.float().contiguous().clone())),
}
"""Networks that compute what a CIFAR ResNet computes."""


class Changed(nn.Module):
    """A network whose images, or their first convolution, are changed in place by way of a view."""

    def __init__(self, change: Call) -> None:
        super().__init__()
        self.change, self.network = change, ResNet()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(x)
        logits: torch.Tensor = self.network(x)
        return logits


OTHER: dict[str, Callable[[], nn.Module]] = {
    "images clamped in place by detach": lambda: Changed(lambda x: x.detach().clamp_(min=0)),
    "images clamped in place by their data": lambda: Changed(lambda x: x.data.clamp_(min=0)),
    "some channels of images by relu in place": lambda: Changed(lambda x: x[:, :3].relu_()),
    "images clamped in place by a view": lambda: Changed(lambda x: x.view_as(x).clamp_(min=0)),
    "some rows of images by relu in place": lambda: Changed(lambda x: x[:, :, :32].relu_()),
    "four times as wide": lambda: ResNet(channels=(64, 128, 256)),
    "one and a half times as wide": lambda: ResNet(channels=(24, 48, 96)),
    "wider only at the end": lambda: ResNet(channels=(16, 32, 128)),
    "wider only at first": lambda: ResNet(channels=(48, 64, 128)),
    "no padding at first": lambda: ResNet(first={"padding": 0}),
    "equal channels": lambda: ResNet(channels=(64, 64, 64)),
    "uneven stages": lambda: ResNet(counts=(2, 1, 1)),
    "uneven stages of six blocks": lambda: ResNet(counts=(1, 2, 3)),
    "bottlenecks": lambda: ResNet(block=Bottleneck),
    "before activation": lambda: ResNet(block=PreActivation),
    "squeeze and excite": lambda: ResNet(block=SqueezeExcite),
    "a larger first kernel": lambda: ResNet(first={"kernel_size": 5, "padding": 2}),
    "a first stride": lambda: ResNet(
        first={"stride": 2},
        pool=nn.AdaptiveAvgPool2d(1),
        head=lambda inside: nn.Sequential(nn.Flatten(), nn.Linear(inside, 10)),
    ),
    "groups": lambda: ResNet(convolution={"groups": 2}),
    "reflected edges": lambda: ResNet(convolution={"padding_mode": "reflect"}),
    "leaky": lambda: ResNet(relu=functional.leaky_relu),
    "relu6": lambda: ResNet(relu=functional.relu6),
    "silu": lambda: ResNet(relu=functional.silu),
    "smaller images": lambda: ResNet(before=nn.AvgPool2d(2)),
    "clipped pixels": lambda: ResNet(before=Function(lambda x: x.clamp(0, 1))),
    "pixels to a power": lambda: ResNet(before=Function(lambda x: x.abs() ** 0.5)),
    "another threshold": lambda: ResNet(relu=lambda x: x.clamp(min=0.1)),
    "no last relu": lambda: ResNet(last=lambda x: x),
    "scaled branches": lambda: ResNet(join=lambda out, x: 0.5 * out + x),
    "weighted shortcuts": lambda: ResNet(join=lambda out, x: torch.add(out, x, alpha=2)),
    "the stride in the second convolution": lambda: ResNet(second_stride=True),
    "3x3 shortcuts": lambda: ResNet(
        shortcut=lambda i, o, s: nn.Conv2d(i, o, 3, s, padding=1, bias=False)
    ),
    "shifted option A": lambda: ResNet(
        shortcut=lambda i, o, s: Function(
            lambda x: functional.pad(x[:, :, 1::2, 1::2], (0, 0, 0, 0, 0, o - i))
        )
    ),
    "channels of ones": lambda: ResNet(
        shortcut=lambda i, o, s: Function(
            lambda x: functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, o - i), value=1.0)
        )
    ),
    "shortcuts by averages": lambda: ResNet(
        shortcut=lambda i, o, s: nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(i, o, 1, bias=False))
    ),
    "largest pixels": lambda: ResNet(pool=lambda x: x.amax((2, 3))),
    "pooling of the centre": lambda: ResNet(pool=lambda x: x[:, :, 2:6, 2:6].mean((2, 3))),
    "group norm": lambda: ResNet(norm=lambda width: nn.GroupNorm(4, width)),
    "instance norm": lambda: ResNet(norm=nn.InstanceNorm2d),
    "a mean image": lambda: ResNet(
        before=Function(lambda x: x - torch.linspace(0, 1, 32).expand(3, 32, 32))
    ),
    "two linear layers": lambda: ResNet(
        head=lambda inside: nn.Sequential(nn.Linear(inside, 64), nn.ReLU(), nn.Linear(64, 10))
    ),
    "probabilities": lambda: ResNet(after=nn.Softmax(dim=1)),
    "a temperature": lambda: ResNet(after=Function(lambda x: x / 2)),
    "pooling of half of the pixels": lambda: ResNet(pool=lambda x: x.flatten(2)[..., :32].mean(2)),
    "some of a hundred classes": lambda: ResNet(
        head=lambda inside: nn.Linear(inside, 100), after=Function(lambda x: x[:, :40])
    ),
    "a branch on values": lambda: ResNet(before=Function(_branching)),
    "a flipped image": lambda: ResNet(before=Function(lambda x: x.flip(3))),
    "the batch's mean": lambda: ResNet(before=Function(lambda x: x - x.mean())),
    "channels of new_ones": lambda: ResNet(
        shortcut=_joined(lambda x, more: [x, _constant("new_ones", x, more)])
    ),
    "channels of ones_like": lambda: ResNet(
        shortcut=_joined(lambda x, more: [x, torch.ones_like(x)])
    ),
    "channels twice": lambda: ResNet(shortcut=_joined(lambda x, more: [x, x])),
    "negative channels": lambda: ResNet(shortcut=_joined(lambda x, more: [x, -x])),
    "zeros between channels": lambda: ResNet(
        shortcut=_joined(lambda x, more: [x[:, :4], _constant("new_zeros", x, more), x[:, 4:]])
    ),
    "zeros in place of a shortcut": lambda: ResNet(
        shortcut=_joined(lambda x, more: [torch.zeros_like(x), _constant("new_zeros", x, more)])
    ),
    "a shortcut by max pooling": lambda: ResNet(shortcut=_picked_by_max_pooling(2)),
    "means of columns, largest of rows": lambda: ResNet(pool=lambda x: x.mean(3).amax(2)),
    "means of columns, one row": lambda: ResNet(pool=lambda x: x.mean(3)[:, :, 0]),
    "means over channels": lambda: ResNet(
        pool=lambda x: x.mean(1).flatten(1), head=lambda inside: nn.Linear(64, 10)
    ),
    "means of other pixels in a row": lambda: ResNet(pool=lambda x: x.flatten(2)[..., ::2].mean(2)),
    "largest of flattened pixels": lambda: ResNet(pool=lambda x: x.flatten(2).amax(2)),
    "pixels and channels mixed up": lambda: ResNet(
        pool=lambda x: x.permute(0, 2, 3, 1).reshape(len(x), 64, -1).mean(2)
    ),
    "means of a part, then of all": lambda: ResNet(pool=lambda x: x[..., :4].mean(3).mean(2)),
    "batch norm of pixels by the batch": lambda: ResNet(
        before=nn.BatchNorm2d(3, track_running_stats=False, affine=False)
    ),
    "instance norm of pixels": lambda: ResNet(before=nn.InstanceNorm2d(3)),
    "batch norm of means": lambda: ResNet(
        pool=nn.AdaptiveAvgPool2d(1),
        head=lambda inside: nn.Sequential(nn.BatchNorm2d(inside), *_convolution_head()(inside)),
    ),
    "a 3x3 convolution at the end": lambda: ResNet(
        pool=nn.AdaptiveAvgPool2d(1), head=_convolution_head(kernel_size=3, padding=1)
    ),
    "a grouped convolution at the end": lambda: ResNet(
        pool=nn.AdaptiveAvgPool2d(1), head=_convolution_head(groups=2)
    ),
    "a convolution and the largest of its pixels": lambda: ResNet(
        pool=lambda x: x,
        head=lambda inside: nn.Conv2d(inside, 10, 1),
        after=Function(lambda x: x.amax((2, 3))),
    ),
    "a relu after the last convolution": lambda: ResNet(
        pool=nn.AdaptiveAvgPool2d(1), head=_convolution_head(), after=nn.ReLU()
    ),
    "two linear functions": lambda: ResNet(
        head=lambda inside: TwoHeads([FunctionalHead(inside), FunctionalHead(inside)])
    ),
    "a second convolution of the image": lambda: ResNet(before=nn.Conv2d(3, 3, 1)),
}
"""Networks that compute something else."""
