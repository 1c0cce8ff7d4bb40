"""Networks for the kernels: with integer weights, which float16 does not round, and realistic."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from sween.models import create_model
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize


def norms_of(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    kind = nn.modules.batchnorm._BatchNorm
    return [part for part in model.modules() if isinstance(part, kind)]


def convolutions_of(model: nn.Module) -> list[nn.Conv2d]:
    return [part for part in model.modules() if isinstance(part, nn.Conv2d)]


def of_whole_numbers(depth: int, seed: int, num_classes: int = 10, *, width: int = 1) -> nn.Module:
    """A network that computes in integers: two weights of +-1 per channel, integer biases."""
    generator = torch.Generator().manual_seed(seed)
    model = CifarResNet(depth, num_classes, width=width)
    for conv in convolutions_of(model):
        flat = torch.zeros(conv.weight[0].numel(), len(conv.weight))
        for column in flat.t():
            places = torch.randperm(len(column), generator=generator)[:2]
            column[places] = torch.randint(0, 2, (2,), generator=generator).float() * 2 - 1
        conv.weight.data = flat.t().reshape(conv.weight.shape).clone()
    for norm in norms_of(model):
        assert norm.running_var is not None
        norm.eps = 2**-10  # GPUs want one
        norm.running_var.fill_(1 - norm.eps)
        norm.bias.data = torch.randint(-2, 3, norm.bias.shape, generator=generator).float()
    for parameter in model.fc.parameters():
        parameter.data = torch.randint(-3, 4, parameter.shape, generator=generator).float()
    return nn.Sequential(Normalize([0, 0, 0], [1, 1, 1]), model).eval()


def trained_looking(
    arch: str, seed: int = 0, shape: tuple[int, int, int] = (3, 32, 32)
) -> nn.Module:
    """A network whose batch norms have non-trivial statistics and scales."""
    mean = (0.4, 0.5, 0.45)[: shape[0]]
    model = create_model(arch, num_classes=10, image_shape=shape, mean=mean, seed=seed)
    return with_statistics(model, seed)


def with_statistics(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for norm in norms_of(model):
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.normal_(0, 0.1, generator=generator)
            norm.running_var.uniform_(0.5, 2, generator=generator)
        norm.weight.data.uniform_(0.5, 1.5, generator=generator)
        norm.bias.data.normal_(0, 0.2, generator=generator)
    return model.eval()


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
