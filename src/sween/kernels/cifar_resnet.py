"""The CIFAR ResNets' forward pass by kernels of our own (`cifar_resnet.cu`)."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from sween.kernels.packing import Stage, pack_stages
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize

Argument = torch.Tensor | int
Launch = Callable[[int, int, Sequence[Argument]], None]
"""Runs a stage's kernel: (stage, blocks, arguments)."""

IMAGE_SHAPE = (3, 32, 32)
IMAGES_A_BLOCK = (1, 1, 2)
"""Of the three kernels."""


def is_cifar_resnet(module: nn.Module, image_shape: Sequence[int]) -> bool:
    """Whether a module is a registered CIFAR ResNet behind its normalisation, for 32 x 32 images.

    Exact types: a subclass may do something else.
    """
    if type(module) is not nn.Sequential or tuple(image_shape) != IMAGE_SHAPE:
        return False
    return [type(part) for part in module] == [Normalize, CifarResNet]


class FusedResNet:
    """Float32 images (N, 3, 32, 32) to float32 logits; float16 products, float32 sums.

    Activations are rounded to float16 after each sum of products, bias and residual. Outputs of an
    image do not depend on the others of a batch, nor on their number.

    Args:
        module: as `is_cifar_resnet` wants it, on the device that will run it. Its parameters are
            copied.
        launch: runs the kernels.
    """

    def __init__(self, module: nn.Module, launch: Launch) -> None:
        assert isinstance(module, nn.Sequential)
        normalize, model = module
        assert isinstance(normalize, Normalize)
        assert isinstance(model, CifarResNet)
        self._launch = launch
        self._stages = pack_stages(model)
        self._normalize = torch.cat([normalize.mean.flatten(), normalize.std.flatten()]).float()
        self._linear = model.fc.weight.detach().float().t().contiguous()
        self._linear_bias = model.fc.bias.detach().float().clone()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[1:] != IMAGE_SHAPE or images.dtype != torch.float32:
            raise ValueError(f"expected float32 (N, 3, 32, 32), got {images.dtype} {images.shape}")
        images, count = images.contiguous(), len(images)
        first, second, third = self._stages

        def halves(channels: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
            shape = (2, count, channels, size, size)
            inner, outer = torch.empty(shape, dtype=torch.float16, device=images.device)
            return inner, outer

        middle, last = halves(32, 16), halves(64, 8)
        classes = self._linear.shape[1]
        logits = torch.empty(count, classes, device=images.device)
        self._run(1, count, [images, self._normalize, *_of(first), *middle])
        self._run(2, count, [*middle, *_of(second), *last])
        tail: list[Argument] = [self._linear, self._linear_bias, logits, classes, count]
        self._run(3, count, [*last, *_of(third), *tail])
        return logits

    def _run(self, stage: int, images: int, arguments: Sequence[Argument]) -> None:
        if images:
            self._launch(stage, -(-images // IMAGES_A_BLOCK[stage - 1]), arguments)


def _of(stage: Stage) -> list[Argument]:
    return [stage.weights, stage.bias, stage.convolutions]
