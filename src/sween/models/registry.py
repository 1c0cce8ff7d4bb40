"""Architectures by name: the one list that the command line, the docs and the tests read."""

import dataclasses
import fnmatch
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence

import torch
from torch import nn

from sween.errors import BadInput, ContractError, OutOfMemory, UnknownName
from sween.models.cifar_resnet import CifarResNet
from sween.models.device import device_of, evaluating, is_out_of_memory
from sween.models.digits_net import DigitsResNet, digits_conv, digits_mlp
from sween.models.imagenet_resnet import ImageNetResNet
from sween.models.normalize import Normalize
from sween.seeding import torch_seed

Builder = Callable[..., nn.Module]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A registered network: how to build it and the images it is meant for."""

    build: Builder
    image_shape: tuple[int, int, int]
    description: str


ARCHITECTURES: dict[str, Architecture] = {
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
        f"imagenet-resnet{depth}": Architecture(
            functools.partial(ImageNetResNet, depth), (3, 224, 224), "ResNet for larger images"
        )
        for depth in (18, 34, 50)
    },
}


def list_models(pattern: str = "*") -> list[str]:
    """Registered names that match a shell pattern."""
    return [name for name in ARCHITECTURES if fnmatch.fnmatch(name, pattern)]


def is_user_architecture(name: str) -> bool:
    """Whether a name is `package.module:factory` rather than registered."""
    return ":" in name


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
        name: a registered name, or `package.module:factory` of the caller's own. A factory is
            called with `num_classes` if it takes it, and normalises its own input.
        num_classes: number of logits.
        image_shape: (C, H, W).
        mean: per-channel mean for the normalisation inside a registered network; 0 if None.
        std: per-channel deviation likewise; 1 if None.
        seed: of the initial weights; the caller's random state is left alone.
    """
    if num_classes < 2:
        raise BadInput("num_classes", expected="at least 2", got=num_classes, fix="add classes")
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the caller's GPU generators.
        torch.default_generator.manual_seed(torch_seed(seed, "initial weights"))
        if is_user_architecture(name):
            return _build_from_factory(name, num_classes)
        if name not in ARCHITECTURES:
            raise UnknownName("architecture", name, ARCHITECTURES)
        channels = image_shape[0]
        normalize = Normalize(mean or (0.0,) * channels, std or (1.0,) * channels)
        body = ARCHITECTURES[name].build(num_classes=num_classes, channels=channels)
        return nn.Sequential(normalize, body)


def _build_from_factory(name: str, num_classes: int) -> nn.Module:
    module_name, _, factory_name = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except Exception as error:  # a caller's own module may raise anything, SyntaxError included
        raise BadInput(
            f"architecture {name!r}",
            expected="an importable package.module:factory",
            got=_first_line(error),
            fix="put the module's folder on PYTHONPATH and check both names",
        ) from None
    if not callable(factory):
        raise BadInput(
            f"architecture {name!r}",
            expected="a factory that can be called",
            got=type(factory).__name__,
            fix="name a function or class that returns the network",
        )
    parameters = inspect.signature(factory).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    takes_classes = "num_classes" in parameters or takes_any
    try:
        model = factory(num_classes=num_classes) if takes_classes else factory()
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"while {name} was built", error) from None
        raise BadInput(
            f"architecture {name!r}",
            expected="a factory that builds the network",
            got=_first_line(error),
            fix="call it on its own to see where it fails",
        ) from error
    if not isinstance(model, nn.Module):
        raise ContractError(
            f"architecture {name!r}",
            expected="a factory that returns a torch.nn.Module",
            got=type(model).__name__,
            fix="return the network itself",
        )
    return model


def check_member(model: nn.Module, *, num_classes: int, image_shape: tuple[int, int, int]) -> None:
    """Refuse a model that does not map an image batch to finite logits of the right shape."""
    try:
        with torch.inference_mode(), evaluating(model):
            output = model(torch.full((2, *image_shape), 0.5, device=device_of(model)))
    except Exception as error:  # a caller's own module may raise anything
        if is_out_of_memory(error):
            where = f"{device_of(model)}, on two images of shape ({_shape(image_shape)})"
            raise OutOfMemory(f"while the network was checked on {where}", error) from None
        raise ContractError(
            "member",
            expected=f"a module that takes images of shape (N, {_shape(image_shape)})",
            got=_first_line(error),
            fix="use an architecture made for these images",
        ) from None
    got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if got != (2, num_classes):
        raise ContractError(
            "member",
            expected=f"logits of shape (2, {num_classes}) for two images",
            got=got,
            fix="build it for this number of classes and return the logits alone",
        )
    if not torch.isfinite(output).all():
        raise ContractError(
            "member", expected="finite logits", got="NaN or infinity", fix="check its weights"
        )


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _shape(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape)
