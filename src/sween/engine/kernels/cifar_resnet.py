"""The forward pass of the CIFAR ResNets with custom kernels (`cifar_resnet.cu` and others)."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import nn

from sween.cuda import Argument
from sween.engine.kernels.packing import Stage, pack_stages, width_of
from sween.engine.kernels.packing_int8 import pack_integer_stages
from sween.engine.kernels.quantized import QuantizedResNet
from sween.engine.kernels.shape import Shape, WideIntegerShape, WideShape
from sween.engine.tracing import has_hooks
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize

IMAGE_SHAPE = (3, 32, 32)

WIDTHS = (1, 2, 3)
"""Of networks that run in float16: how many times the channels of the paper's."""

INTEGER_WIDTHS = (1, 2, 3, 4)
"""Of networks that run in integers."""


class Launch(Protocol):
    """Runs the kernels that were compiled for its shape."""

    shape: Shape

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None: ...


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some images of a batch; how many is known only on the device.

    Attributes:
        rows: int32 (N,); the first `count` are the positions of the images.
        count: int32 (1,).
    """

    rows: torch.Tensor
    count: torch.Tensor

    @classmethod
    def of(cls, wanted: torch.Tensor) -> "Selection":
        """The images where `wanted` (N,) is true, in order."""
        rows = torch.argsort((~wanted).to(torch.uint8), stable=True)
        return cls(rows.int(), wanted.sum(dtype=torch.int32)[None])


def is_cifar_resnet(
    module: nn.Module, image_shape: Sequence[int], *, widths: Collection[int] = (1,)
) -> bool:
    """Whether a module is a registered CIFAR ResNet behind its normalisation, for 32 x 32 images.

    Exact types only: a subclass may behave differently.
    """
    if type(module) is not nn.Sequential or tuple(image_shape) != IMAGE_SHAPE:
        return False
    if [type(part) for part in module] != [Normalize, CifarResNet]:
        return False
    normalize, model = module
    assert isinstance(normalize, Normalize)
    assert isinstance(model, CifarResNet)
    depth, classes, width = _depth(model), model.fc.out_features, width_of(model)
    return (
        normalize.mean.numel() == normalize.std.numel() == len(IMAGE_SHAPE)
        and not any(map(has_hooks, module.modules()))
        and width in widths
        and _layers(model) == _layers(CifarResNet(depth, classes, width=width))
        and all(_has_statistics(part) for part in model.modules() if _is_norm(part))
        and len({part.training for part in model.modules()}) == 1  # a batch norm left in training
    )


def shape_for(module: nn.Module) -> Shape:
    """That of the kernels that run a network which `is_cifar_resnet` accepts, in float16."""
    assert isinstance(module, nn.Sequential)
    model = module[1]
    assert isinstance(model, CifarResNet)
    width = width_of(model)
    return Shape() if width == 1 else WideShape(width=width)


def _depth(model: CifarResNet) -> int:
    return 6 * len(model.stage1) + 2


def _layers(model: CifarResNet) -> list[tuple[type[nn.Module], str]]:
    """Type and settings, such as the stride, of each layer: a user may have replaced one."""
    return [
        (type(part), "" if _is_norm(part) else repr(part))
        for part in model.modules()
        if part is not model  # whose type is known, and whose settings are those of its layers
    ]


def _is_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.BatchNorm2d)


def _has_statistics(norm: nn.Module) -> bool:
    """Whether a batch norm is the same for every batch, with the tensors that kernels need."""
    assert isinstance(norm, nn.BatchNorm2d)
    return norm.running_mean is not None and norm.running_var is not None and norm.affine


class FusedResNet:
    """Float32 images (N, 3, 32, 32) to float32 logits; float16 products, float32 sums.

    Activations are rounded to float16 after each sum of products, bias and residual. The outputs
    for an image do not depend on the other images of the batch, nor on their number.

    Args:
        module: one that `is_cifar_resnet` accepts, of one of `WIDTHS`, on the device that will run
            it. Its parameters are copied.
        launch: runs the kernels of `shape_for` its width.
    """

    inner_type = torch.float16
    """Of the activations inside a block between two stages."""

    @torch.no_grad()
    def __init__(self, module: nn.Module, launch: Launch) -> None:
        assert isinstance(module, nn.Sequential)
        normalize, model = module
        assert isinstance(normalize, Normalize)
        assert isinstance(model, CifarResNet)
        self._launch = launch
        self._stages, self._width = pack_stages(model), width_of(model)
        constants = [normalize.mean.flatten(), 1 / normalize.std.flatten()]
        self._normalize = torch.cat(constants).float()
        self._linear = (
            model.fc.weight.detach().float().t().clone(memory_format=torch.contiguous_format)
        )
        self._linear_bias = model.fc.bias.detach().float().clone()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        # float32, whatever torch's default is
        logits = images.new_empty(len(images), self._linear.shape[1])
        no_rows = torch.empty(0, dtype=torch.int32, device=images.device)  # a null pointer
        self._pass(images.contiguous(), logits, len(images), [no_rows, no_rows, 0])
        return logits

    def selected(self, images: torch.Tensor, selection: Selection, *, at_once: int) -> torch.Tensor:
        """Logits (N, classes) of the selected images, and zeros for the others.

        The host does not wait to learn how many images are selected.

        Args:
            images: (N, 3, 32, 32).
            selection: which of them.
            at_once: the most images that fit in memory at once.
        """
        images = images.contiguous()
        logits = images.new_zeros(len(images), self._linear.shape[1])
        for first in range(0, len(images), at_once):
            chosen: list[Argument] = [selection.rows, selection.count, first]
            self._pass(images, logits, min(at_once, len(images) - first), chosen)
        return logits

    def _pass(
        self,
        images: torch.Tensor,
        logits: torch.Tensor,
        count: int,
        chosen: Sequence[Argument],
    ) -> None:
        """Write the logits of at most `count` images.

        `chosen`: the selected rows, their number, and the first of them to compute.
        """
        _check_images(images)
        first, second, third = self._stages

        def between(channels: int, size: int) -> list[torch.Tensor]:
            shape = (count, channels, size, size)
            types = (self.inner_type, torch.float16)
            return [torch.empty(shape, dtype=own, device=images.device) for own in types]

        middle, last = between(32 * self._width, 16), between(64 * self._width, 8)
        self._run(1, count, [images, self._normalize, *_of(first), *middle, *chosen])
        self._run(2, count, [*middle, *_of(second), *last, *chosen[1:]])
        tail: list[Argument] = [self._linear, self._linear_bias, logits, logits.shape[1], count]
        self._run(3, count, [*last, *_of(third), *tail, *chosen])

    def _run(self, stage: int, images: int, arguments: Sequence[Argument]) -> None:
        if images:
            blocks = -(-images // self._launch.shape.images_per_block(stage))
            self._launch(stage, blocks, arguments)


class FusedQuantizedResNet(FusedResNet):
    """A quantised network on kernels in 8-bit integers, bit for bit.

    Args:
        network: to run.
        launch: runs the kernels of an `IntegerShape`.
        device: that will run it.
    """

    inner_type = torch.uint8

    def __init__(self, network: QuantizedResNet, launch: Launch, device: torch.device) -> None:
        self._launch, self._width = launch, network.width
        first, second, third = (stage.to(device) for stage in pack_integer_stages(network))
        self._stages = first, second, third
        self._normalize = torch.cat([network.mean, network.factor]).to(device)
        self._linear = network.linear.to(device)
        self._linear_bias = network.linear_bias.to(device)


class WideQuantizedResNet(FusedQuantizedResNet):
    """A wide quantised network on kernels in 8-bit integers, bit for bit.

    Args:
        network: to run.
        launch: runs the kernels of a `WideIntegerShape`.
        device: that will run it.
    """

    def _pass(
        self,
        images: torch.Tensor,
        logits: torch.Tensor,
        count: int,
        chosen: Sequence[Argument],
    ) -> None:
        _check_images(images)
        shape = self._launch.shape
        assert isinstance(shape, WideIntegerShape)
        first, second, third = self._stages

        def activations(stage: int, dtype: torch.dtype) -> torch.Tensor:
            size, channels = 64 >> stage, shape.channels(stage)
            rows = -(-count // shape.images_per_block(stage)) * shape.images_per_block(stage)
            return torch.empty(rows, channels, size, size, dtype=dtype, device=images.device)

        # The kernels of stages 2 and 3 change what shortcuts carry in place.
        carried = [activations(stage, torch.float16) for stage in (1, 2, 3)]
        inner = [activations(stage, torch.uint8) for stage in (2, 3)]
        begin = [images, self._normalize, *_of(first), carried[0], inner[0], carried[1]]
        self._run(1, count, [*begin, *chosen])
        self._run(2, count, [inner[0], carried[1], *_of(second), inner[1], carried[2], *chosen[1:]])
        tail: list[Argument] = [self._linear, self._linear_bias, logits, logits.shape[1], count]
        self._run(3, count, [inner[1], carried[2], *_of(third), *tail, *chosen])


def _check_images(images: torch.Tensor) -> None:
    if images.shape[1:] != IMAGE_SHAPE or images.dtype != torch.float32:
        raise ValueError(f"expected float32 (N, 3, 32, 32), got {images.dtype} {images.shape}")


def _of(stage: Stage) -> list[Argument]:
    return [stage.weights, stage.bias, stage.convolutions]
