"""Gradients of the CIFAR ResNets in their images with custom kernels.

Those of `cifar_resnet_gradient.cu`, after a forward pass by `cifar_resnet.cu`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument
from sween.engine.kernels.cifar_resnet import FusedResNet, Launch
from sween.engine.kernels.packing import (
    block_convs,
    downsampling_convs,
    fold,
    pack_weights,
)
from sween.models.cifar_resnet import BasicBlock, CifarResNet

LARGEST = 16.0
"""Of a row's gradient in the logits, after scaling: float16 then holds what follows from it."""


class FusedGradients(FusedResNet):
    """Logits as those of `FusedResNet`, and their vector-Jacobian products.

    Products are in float16, sums in float32. Nothing depends on the other images of the batch.

    Args:
        module: as for `FusedResNet`.
        forward: runs the kernels of a `MaskShape`.
        backward: runs those of a `GradientShape`.
    """

    @torch.no_grad()
    def __init__(self, module: nn.Module, forward: Launch, backward: Launch) -> None:
        super().__init__(module, forward)
        assert isinstance(module, nn.Sequential)
        assert isinstance(module[1], CifarResNet)
        self._backward = backward
        self._transposed = transposed_stages(module[1])
        self._saved: list[torch.Tensor] = []

    def pull(
        self, images: torch.Tensor, gradient: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """The vector-Jacobian product at a batch of images.

        Args:
            images: float32 (N, 3, 32, 32).
            gradient: from logits (N, classes) to the vector in them, of the same shape.
        """
        logits = self(images)
        given = gradient(logits)
        scale = given.abs().amax(dim=1, keepdim=True) / LARGEST
        vector = torch.where(scale > 0, given / scale, 0.0).contiguous()
        pulled = torch.empty_like(images, memory_format=torch.contiguous_format)
        self._pull(vector, pulled)
        return pulled * scale[:, :, None, None]

    def _pass(
        self,
        images: torch.Tensor,
        logits: torch.Tensor,
        count: int,
        chosen: Sequence[Argument],
    ) -> None:
        layers = [stage.convolutions for stage in self._stages]
        layers[0] += 1  # the first convolution
        threads = (256, 128, 64)  # of an image
        rows = count + -count % self._launch.shape.images_per_block(3)
        self._saved = [
            torch.empty(rows, own, width, 2, dtype=torch.int32, device=images.device)
            for own, width in zip(layers, threads, strict=True)
        ]
        super()._pass(images, logits, count, chosen)

    def _run(self, stage: int, images: int, arguments: Sequence[Argument]) -> None:
        if stage > 1:  # the activations that this kernel begins with
            inner = arguments[0]
            assert isinstance(inner, torch.Tensor)
            self._saved.append(inner)
        super()._run(stage, images, [*arguments, self._saved[stage - 1]])

    def _pull(self, vector: torch.Tensor, pulled: torch.Tensor) -> None:
        """Write the gradients in the images of the last pass."""
        count, (masks1, masks2, masks3, inner2, inner3) = len(vector), self._saved
        first, second, third = self._transposed

        def like(inner: torch.Tensor) -> list[torch.Tensor]:
            return [torch.empty_like(inner) for _ in range(2)]

        own = [stage.convolutions for stage in self._stages]
        at3, at2 = like(inner3), like(inner2)
        begin: list[Argument] = [
            vector,
            self._linear,
            vector.shape[1],
            third,
            own[2],
            masks3,
            inner3,
            *at3,
            count,
        ]
        self._launch_back(3, count, begin)
        self._launch_back(2, count, [*at3, second, own[1], masks2, inner2, *at2])
        self._launch_back(1, count, [*at2, first, own[0], masks1, self._normalize, pulled])
        self._saved = []

    def _launch_back(self, stage: int, images: int, arguments: Sequence[Argument]) -> None:
        if images:
            blocks = -(-images // self._backward.shape.images_per_block(stage))
            self._backward(stage, blocks, arguments)


def transposed_stages(model: CifarResNet) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weights of the three kernels, in the order in which they need them.

    First the convolutions that begin the next stage, then a stage's own from the last to the first.
    """
    blocks = [[*stage] for stage in (model.stage1, model.stage2, model.stage3)]
    own = [[conv for block in stage for conv in block_convs(block)] for stage in blocks]
    first = _turned(fold(model.conv1, model.bn1))
    first = functional.pad(first, (0, 0, 0, 0, 0, 0, 0, first.shape[1] - first.shape[0]))
    # The kernels of stages 2 and 3 begin with the second convolution of their first block.
    weights = [
        [*_begin(blocks[1][0]), *map(_turned, reversed(own[0])), first],
        [*_begin(blocks[2][0]), *map(_turned, reversed(own[1][1:]))],
        [*map(_turned, reversed(own[2][1:]))],
    ]
    one, two, three = (torch.cat([pack_weights(each) for each in stage]) for stage in weights)
    return one, two, three


def _turned(conv: nn.Conv2d) -> torch.Tensor:
    return conv.weight.transpose(0, 1).flip(2, 3)


def _begin(block: nn.Module) -> list[torch.Tensor]:
    """Those that halve the size are not turned around: their taps are looked up one by one."""
    assert isinstance(block, BasicBlock)
    return [conv.weight.transpose(0, 1) for conv in downsampling_convs(block)]
