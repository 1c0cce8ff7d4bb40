"""Architectures by name.

To add one, write its network in a new file and register it: in `ARCHITECTURES` below, or from
outside with `register_architecture`.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import nn

from sween.errors import (
    BadInput,
    ContractError,
    OutOfMemory,
    describe_error,
    describe_type,
    is_out_of_memory,
)
from sween.factories import TIMM_PREFIX, Factory, FactoryRegistry
from sween.models.cifar_resnet import CifarResNet
from sween.models.device import device_of
from sween.models.digits_net import DigitsResNet, digits_conv, digits_mlp
from sween.models.evaluation_mode import evaluating
from sween.models.from_timm import create_timm_model
from sween.models.imagenet_resnet import ImageNetResNet
from sween.models.normalize import Normalize
from sween.seeding import torch_seed

_Build = TypeVar("_Build", bound=Factory)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A registered network.

    Attributes:
        build: returns the network; called with those of `num_classes`, `image_shape` and `channels`
            that it takes.
        image_shape: (C, H, W) of the images it is meant for.
        description: a few words.
        normalize: whether the data set's mean and deviation are put in front of it; one that
            normalises for itself takes [0,1] images as they are.

    Example:
        See `register_architecture`.
    """

    build: Factory
    image_shape: tuple[int, int, int]
    description: str
    normalize: bool = True


_BUILT_IN = {
    "digits-mlp": Architecture(digits_mlp, (1, 8, 8), "perceptron 64-256-128-10"),
    "digits-conv": Architecture(digits_conv, (1, 8, 8), "three convolutions, 16-32-32 channels"),
    "digits-resnet": Architecture(DigitsResNet, (1, 8, 8), "one residual block of 32 channels"),
    **{
        f"resnet{depth}": Architecture(
            functools.partial(CifarResNet, depth), (3, 32, 32), "CIFAR ResNet of the paper"
        )
        for depth in (20, 26, 32, 50, 80, 110)
    },
    **{
        f"resnet{depth}x{width}": Architecture(
            functools.partial(CifarResNet, depth, width=width),
            (3, 32, 32),
            f"CIFAR ResNet with {width} times the channels",
        )
        for depth in (20, 26, 32)
        for width in (2, 3, 4)
    },
    **{
        f"imagenet-resnet{depth}": Architecture(
            functools.partial(ImageNetResNet, depth), (3, 224, 224), "ResNet for larger images"
        )
        for depth in (18, 34, 50)
    },
}

ARCHITECTURES = FactoryRegistry("architecture", _BUILT_IN)


@overload
def register_architecture(
    name: str,
    factory: None = None,
    *,
    image_shape: tuple[int, int, int],
    description: str = "",
    normalize: bool = False,
) -> Callable[[_Build], _Build]: ...


@overload
def register_architecture(
    name: str,
    factory: _Build,
    *,
    image_shape: tuple[int, int, int],
    description: str = "",
    normalize: bool = False,
) -> _Build: ...


def register_architecture(
    name: str,
    factory: Factory | None = None,
    *,
    image_shape: tuple[int, int, int],
    description: str = "",
    normalize: bool = False,
) -> Any:
    """Register a custom network for `create_model`, training and checkpoints, in this process.

    Register it again, e.g. by importing your module, before you load a checkpoint of it. On the
    command line, use `package.module:factory` instead.

    Args:
        name: letters, digits and ._+-; registering a custom name again replaces it.
        factory: see `Architecture.build`; returns an nn.Module from [0,1] images to logits. None
            for a decorator.
        image_shape: (C, H, W) of the images it is meant for.
        description: a few words.
        normalize: put the data set's mean and deviation in front of the network.

    Example:
        >>> import sween, torch
        >>> @sween.register_architecture("tiny", image_shape=(1, 8, 8))
        ... def tiny(num_classes: int) -> torch.nn.Module:
        ...     return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
        >>> network = sween.create_model("tiny", num_classes=10, image_shape=(1, 8, 8))
        >>> network(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    return ARCHITECTURES.register(
        name, factory, lambda build: Architecture(build, image_shape, description, normalize)
    )


def list_models(pattern: str = "*") -> list[str]:
    """Registered names that match a shell pattern.

    Example:
        >>> from sween.models import list_models
        >>> list_models("digits-*")
        ['digits-mlp', 'digits-conv', 'digits-resnet']
    """
    return [name for name in ARCHITECTURES if fnmatch.fnmatch(name, pattern)]


def create_model(
    name: str,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> nn.Module:
    """A freshly initialised network from [0,1] images to logits.

    Args:
        name: a registered name; `timm:NAME`; or a custom `package.module:factory`, which is called
            like `Architecture.build` and normalises its own input.
        num_classes: number of logits.
        image_shape: (C, H, W).
        mean: per-channel mean for the normalisation inside a registered network; 0 if None.
        std: per-channel deviation likewise; 1 if None.
        seed: of the initial weights; the caller's random state is left alone.

    Example:
        >>> import sween, torch
        >>> network = sween.create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
        >>> network(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if num_classes < 2:
        raise BadInput("num_classes", expected="at least 2", got=num_classes, fix="add classes")
    options = {
        "num_classes": num_classes,
        "image_shape": image_shape,
        "channels": image_shape[0],
    }
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the caller's GPU generators.
        torch.default_generator.manual_seed(torch_seed(seed, "initial weights"))
        entry = _find(name, image_shape)
        try:
            model = ARCHITECTURES.build(name, entry.build, options)
        except Exception as error:
            cause = error.__cause__ or error
            if is_out_of_memory(cause):
                raise OutOfMemory(f"while {name} was built", cause) from None
            raise
    if not isinstance(model, nn.Module):
        raise ContractError(
            f"architecture {name!r}: expected a factory that returns a torch.nn.Module, got "
            f"{describe_type(model)}; return the network itself"
        )
    if not entry.normalize:
        return model
    model.float()  # whatever torch's default type is
    channels = image_shape[0]
    return nn.Sequential(Normalize(mean or (0.0,) * channels, std or (1.0,) * channels), model)


def _find(name: str, image_shape: tuple[int, int, int]) -> Architecture:
    def custom(build: Factory) -> Architecture:
        return Architecture(build, image_shape, "custom", normalize=False)

    if name.startswith(TIMM_PREFIX):
        return custom(functools.partial(create_timm_model, name))
    return ARCHITECTURES.find_or_import(name, custom)


def check_member(model: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
    """Refuse a model that does not map an image batch to finite logits of the right shape.

    Example:
        >>> import torch
        >>> from sween.models import check_member
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> check_member(network, num_classes=10, image_shape=(1, 8, 8))
        >>> check_member(network, num_classes=3, image_shape=(1, 8, 8))
        Traceback (most recent call last):
            ...
        sween.errors.ContractError: member: expected logits of shape (2, 3) for two images, ...
    """
    try:
        with torch.inference_mode(), evaluating(model):
            output = model(torch.full((2, *image_shape), 0.5, device=device_of(model)))
    except Exception as error:  # a custom module may raise anything
        if is_out_of_memory(error):
            where = f"{device_of(model)}, on two images of shape ({_shape(image_shape)})"
            raise OutOfMemory(f"while the network was checked on {where}", error) from None
        raise ContractError(
            f"member: expected a module that accepts images of shape (N, {_shape(image_shape)}), "
            f"got {describe_error(error)}; use an architecture made for these images"
        ) from None
    got = tuple(output.shape) if isinstance(output, torch.Tensor) else describe_type(output)
    if got != (2, num_classes):
        raise ContractError(
            f"member: expected logits of shape (2, {num_classes}) for two images, got {got}; build "
            "it for this number of classes and return the logits alone"
        )
    if not torch.isfinite(output).all():
        raise ContractError(
            "member", expected="finite logits", got="NaN or infinity", fix="check its weights"
        )


def _shape(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape)
