"""The CIFAR ResNets in 8-bit integers, exactly as `cifar_resnet_int8.cu` computes them.

Wide ones are computed by `wide_resnet_int8.cu`. Inputs of convolutions are bytes: 255 steps from 0
to a range that is fixed for each of them (`CifarResNet.activation_ranges`). Weights are -127 to 127
with a scale per output channel, biases whole numbers of the same scale. Sums are whole numbers,
exact in float32. What shortcuts carry is float16. No step depends on the order of a sum that
rounds, so that this code and the kernels agree bit for bit.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from sween.engine.kernels.packing import block_convs, downsampling_convs, fold, width_of
from sween.models.cifar_resnet import BasicBlock, CifarResNet
from sween.models.normalize import Normalize

STEPS = 255
"""Of activations; those of weights are 127 in each direction."""

LARGEST_SUM = 2**22
"""Sums and their partial sums are smaller; the kernels read them as the bits of floats."""

LARGEST_WIDE_SUM = 2**24
"""Of wide networks, whose kernels convert them: float32 has all whole numbers up to this one."""

_TWO_BITS_LESS = ~3
"""Of the bits of a float32. Scales have two bits less than a float, so that the kernels can remove
the offset of a sum in the same multiplication without rounding twice."""


@dataclasses.dataclass(frozen=True)
class IntegerConvolution:
    """A convolution of bytes.

    Attributes:
        weight: int8 (out, in, h, w).
        bias: int32 (out,), added to the sums.
        scale: float32 (out,), by which sums are multiplied.
        stride: of the pixels.
        next: from activations to the unit interval that the next layer's bytes divide, a float16;
            the first convolution of a block has it in its scale.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    scale: torch.Tensor
    stride: int
    next: float = 0.0

    @classmethod
    def of(
        cls,
        conv: nn.Conv2d,
        range_in: float,
        *,
        largest_sum: int,
        factor: float = 1.0,
        next: float = 0.0,
    ) -> "IntegerConvolution":
        """Round a float64 convolution of activations from 0 to `range_in`.

        Its outputs are multiplied by `factor`; sums stay below `largest_sum`.
        """
        assert conv.bias is not None
        weight, bias = conv.weight.detach() * range_in / STEPS, conv.bias.detach()
        flat = weight.flatten(1)
        # A channel with small weights and a large bias has a larger scale.
        extreme = STEPS * torch.maximum(flat.clamp(min=0).sum(1), -flat.clamp(max=0).sum(1))
        rounding = STEPS * flat.shape[1] / 2 + 1
        needed = (extreme + bias.abs()) / (largest_sum - rounding)
        scale = torch.maximum(flat.abs().amax(1) / 127, needed)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return cls(
            (weight / scale[:, None, None, None]).round().to(torch.int8),
            (bias / scale).round().to(torch.int32),
            ((scale * factor).float().view(torch.int32) & _TWO_BITS_LESS).view(torch.float32),
            conv.stride[0],
            next,
        )

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """The scaled outputs for bytes (N, in, H, W), held as float32."""
        padding = self.weight.shape[-1] // 2
        sums = functional.conv2d(
            inputs, self.weight.float(), self.bias.float(), self.stride, padding
        )
        return sums * self.scale[:, None, None]


Convolve = Callable[[IntegerConvolution, torch.Tensor], torch.Tensor]
"""What calling a convolution with bytes gives, by other means perhaps."""


class QuantizedResNet:
    """Float32 images (N, 3, 32, 32) on the CPU to float32 logits.

    Args:
        module: one that `is_cifar_resnet` accepts, with activation ranges. It is copied.
    """

    @torch.no_grad()
    def __init__(self, module: nn.Module) -> None:
        assert isinstance(module, nn.Sequential)
        normalize, model = copy.deepcopy(module).cpu().double()
        assert isinstance(normalize, Normalize)
        assert isinstance(model, CifarResNet)
        assert model.activation_ranges is not None
        self.width = width_of(model)
        rounded = functools.partial(
            IntegerConvolution.of,
            largest_sum=LARGEST_SUM if self.width == 1 else LARGEST_WIDE_SUM,
        )
        factors = (1 / model.activation_ranges).half().tolist()
        ranges = [1 / factor for factor in factors]
        self.mean = normalize.mean.flatten().float()
        self.factor = (factors[0] / normalize.std.flatten()).float()
        first = fold(model.conv1, model.bn1)
        # A pixel's value above its mean and its value below it are two channels.
        first.weight = nn.Parameter(torch.cat([first.weight, -first.weight], 1))
        self.first = rounded(first, ranges[0], next=factors[1])
        self.blocks: list[tuple[IntegerConvolution, IntegerConvolution]] = []
        self.shortcuts: dict[int, IntegerConvolution] = {}
        blocks = [*model.stage1, *model.stage2, *model.stage3]
        for i, block in enumerate(blocks):
            assert isinstance(block, BasicBlock)
            range_in, range_inside = ranges[2 * i + 1 : 2 * i + 3]
            one, two = block_convs(block)
            inner = rounded(one, range_in, factor=factors[2 * i + 2])
            # The last outputs are averaged, not multiplied.
            next = factors[2 * i + 3] if i + 1 < len(blocks) else 0.0
            self.blocks.append((inner, rounded(two, range_inside, next=next)))
            if isinstance(block.shortcut, nn.Sequential):
                around = downsampling_convs(block)[1]
                self.shortcuts[i] = rounded(around, range_in)
        self.linear = model.fc.weight.detach().float().t().contiguous()
        self.linear_bias = model.fc.bias.detach().float()

    @property
    def convolutions(self) -> list[IntegerConvolution]:
        """All of them."""
        inside = [conv for block in self.blocks for conv in block]
        return [self.first, *inside, *self.shortcuts.values()]

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits(self.features(images, IntegerConvolution.__call__))

    def features(self, images: torch.Tensor, convolve: Convolve) -> torch.Tensor:
        """What the last block leaves: (N, channels, 8, 8), float16 values held as float32."""
        unit = (images - self.mean[:, None, None]) * self.factor[:, None, None]
        kept = _float16(convolve(self.first, _bytes(torch.cat([unit, -unit], 1))))
        kept, next = functional.relu(kept), self.first.next
        for i, (inner, outer) in enumerate(self.blocks):
            inputs = _bytes(kept * next)
            if i in self.shortcuts:
                kept = _float16(convolve(self.shortcuts[i], inputs))
            branch = _float16(convolve(outer, _bytes(convolve(inner, inputs))))
            kept, next = functional.relu(_float16(branch + kept)), outer.next
        return kept

    @torch.no_grad()
    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Of the features, with sums in the kernels' order."""
        pixels = features.flatten(2)
        even, odd = torch.zeros_like(pixels[:, :, 0]), torch.zeros_like(pixels[:, :, 0])
        for i in range(0, pixels.shape[2], 2):
            even, odd = even + pixels[:, :, i], odd + pixels[:, :, i + 1]
        means = even / pixels.shape[2] + odd / pixels.shape[2]
        logits = self.linear_bias.expand(len(means), -1)
        for mean, weights in zip(means.t(), self.linear, strict=True):
            logits = logits + mean[:, None] * weights
        return logits


def _float16(values: torch.Tensor) -> torch.Tensor:
    """Rounded to float16, held as float32.

    Sums and products of two such numbers, rounded to float32 first, come out as if rounded once.
    """
    return values.half().float()


def _bytes(unit: torch.Tensor) -> torch.Tensor:
    """Float16 values of the unit interval as 0 to 255, held as float32."""
    return (_float16(unit.clamp(0, 1)) * STEPS).round()
