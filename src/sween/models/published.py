"""Checkpoints that others published, read without running any code in them.

Cohen et al., MACER, SmoothAdv, consistency, CAT-RS and others save a pickled dictionary with the
weights under `state_dict`, `net` or `model`, often behind `module.` (DataParallel), the index of an
`nn.Sequential` whose first layer normalises, or both. The tensors are renamed to those of the
registered architecture with the same weights.
"""

import argparse
import collections
import dataclasses
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from sween.errors import BadInput, CheckpointError, UnknownName, describe_error
from sween.factories import FACTORY_FORM
from sween.models.cifar_resnet import CifarResNet
from sween.models.registry import ARCHITECTURES, create_model
from sween.paths import AnyPath

NORMALIZATIONS = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and deviation, by the name that others use for them."""

STATES = ("state_dict", "net", "model", "model_state_dict")
"""Where a dictionary of a training script has the weights."""

_UNREADABLE = (
    *(RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError),
    SafetensorError,
)
_RENAMED = (
    (r"\bmodule\.", ""),
    (r"\b(downsample|skip|residual)\.", "shortcut."),
    (r"^(linear|classifier|logits)\.", "fc."),
)

Constants = tuple[Sequence[float], Sequence[float]]
Plain = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Published:
    """The weights of a published checkpoint.

    Attributes:
        tensors: by the name that they have there, without the prefix that all of them share.
        constants: mean and deviation of the normalisation, if the file has them.
        about: other entries of the file that are plain values, such as the epoch.
        used: mean and deviation inside the network, those of the file or given ones.
        assumed: what the file does not say and was taken as in the published code.
    """

    tensors: Mapping[str, torch.Tensor]
    constants: Constants | None
    about: Mapping[str, Plain]
    used: Constants | None = None
    assumed: str | None = None


def read_published(path: AnyPath) -> Published:
    """Read a checkpoint of a training script; anything but tensors and plain values is refused.

    Raises:
        CheckpointError: the file is damaged, needs code to be read, or has no weights.
    """
    state, about = read_weights(path)
    network, others = _split(path, state)
    constants = _constants(others) if others else None
    if others and constants is None:
        raise CheckpointError(
            f"{path}: {', '.join(sorted(others))}: expected the weights of one network, and at "
            "most its normalisation, got other tensors; save the network's own state_dict"
        )
    return Published(network, constants, about)


def read_weights(path: AnyPath) -> tuple[Mapping[str, torch.Tensor], Mapping[str, Plain]]:
    """The tensors of a checkpoint under their own names, and its other entries if plain values.

    Raises:
        CheckpointError: see `read_published`.
    """
    path = Path(path)
    content = _load(path)
    state = _state(content)
    for name, tensor in (state or {}).items():
        _refuse_kind(path, name, tensor)
    if state is None:
        raise CheckpointError(
            str(path),
            expected=f"a dictionary of weights, alone or under {', '.join(STATES)}",
            got=", ".join(map(str, content))
            if isinstance(content, Mapping)
            else type(content).__name__,
            fix="save model.state_dict() with torch.save",
        )
    return state, {str(k): v for k, v in content.items() if isinstance(v, Plain)}


def _refuse_kind(path: Path, name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = tensor.dtype if tensor.is_quantized else tensor.layout
        raise CheckpointError(
            f"{path}: {name}",
            expected="a plain tensor",
            got=str(kind).removeprefix("torch."),
            fix="save the state_dict of the network in float32",
        )


def _load(path: Path) -> Any:
    # What training scripts save besides weights: numbers of numpy, and their options.
    scalar: Any = np.float64(0).__reduce__()[0]
    names = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
    harmless: list[Any] = [argparse.Namespace, np.dtype, *((scalar, name) for name in names)]
    harmless += [type(np.dtype(kind)) for kind in ("float64", "float32", "int64", "int32", "bool")]
    if not path.is_file():
        raise CheckpointError(str(path), expected="a file", got="none", fix="check the path")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(harmless):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: expected tensors and plain values, which can be read without running code, "
            f"got {_unsafe(error)}; save model.state_dict() with torch.save, and nothing else"
        ) from None
    except _UNREADABLE as error:
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{path}: expected tensors and plain values, which can be read without running "
                "code, got a TorchScript archive, which is code; save model.state_dict() with "
                "torch.save"
            ) from None
        raise CheckpointError(
            f"{path}: expected a file of torch.save or safetensors, got something else "
            f"({describe_error(error)}); download it again"
        ) from None


def _unsafe(error: Exception) -> str:
    found = re.search(r"(?:GLOBAL|global) ([\w.]+)", str(error))
    return f"{found[1]}, which is code" if found else "something else"


def _state(content: Any) -> Mapping[str, torch.Tensor] | None:
    if not isinstance(content, Mapping):
        return None
    for inner in (*(content.get(name) for name in STATES), content):
        if isinstance(inner, Mapping) and inner:
            values = list(inner.values())
            if all(isinstance(value, torch.Tensor) for value in values):
                return {str(name): tensor for name, tensor in inner.items()}
    return None


def _split(
    path: AnyPath, state: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The network's tensors under their own names, and all others."""
    names = {name: _renamed(name) for name in state}
    first = [own for own in names.values() if own.rpartition(".")[0].endswith("conv1")]
    prefix = min(first, key=len).rpartition("conv1")[0] if first else ""
    inside = {name: own for name, own in names.items() if own.startswith(prefix)}
    origins = collections.defaultdict[str, list[str]](list)
    for name, own in inside.items():
        origins[_renamed(own.removeprefix(prefix))].append(name)
    for own, found in origins.items():
        if len(found) > 1:
            raise CheckpointError(
                f"{path}: {own}",
                expected="one tensor",
                got=" and ".join(found),
                fix="save the state_dict of one network",
            )
    network = {own: state[name] for own, (name,) in origins.items()}
    return network, {name: state[name] for name in names if name not in inside}


def _renamed(name: str) -> str:
    for pattern, new in _RENAMED:
        name = re.sub(pattern, new, name)
    return name


def _constants(others: Mapping[str, torch.Tensor]) -> Constants | None:
    """Mean and deviation among the tensors of a layer in front."""
    found: dict[str, list[float]] = {}
    for name, tensor in others.items():
        kind = "mean" if "mean" in name else "std" if re.search(r"std|sds?\b|sigma", name) else None
        if kind is None or kind in found:
            return None
        found[kind] = tensor.flatten().tolist()
    if len(found) != 2 or len(found["mean"]) != len(found["std"]):
        return None
    return found["mean"], found["std"]


def parse_normalization(text: str) -> Constants:
    """`cifar10`, `imagenet`, `none` or MEAN/STD, such as 0.5,0.5,0.5/0.2,0.2,0.2."""
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    mean, _, std = text.partition("/")
    try:
        numbers = [[float(number) for number in side.split(",")] for side in (mean, std)]
    except ValueError:
        numbers = []
    if len(numbers) != 2 or len(numbers[0]) != len(numbers[1]) or not _usable(*numbers):
        raise BadInput(
            f"normalize: expected {', '.join(NORMALIZATIONS)} or MEAN/STD, a finite number for "
            f"each channel, deviations above 0, got {text!r}; for example "
            "0.5,0.5,0.5/0.25,0.25,0.25"
        )
    return numbers[0], numbers[1]


def _usable(mean: Sequence[float], std: Sequence[float]) -> bool:
    """In float32, in which images are normalised; so must be what divides them."""
    deviations = torch.tensor(std, dtype=torch.float32)
    numbers = torch.cat([torch.tensor(mean, dtype=torch.float32), deviations, 1 / deviations])
    return bool(torch.isfinite(numbers).all() and (deviations > 0).all())


def published_network(
    path: AnyPath,
    arch: str,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    normalize: str | None = None,
) -> tuple[nn.Module, Published]:
    """A registered network with the weights of a published checkpoint, normalisation inside.

    Args:
        path: written by torch.save.
        arch: a registered architecture; CIFAR ResNets whose shortcuts have no weights (option A)
            get the convolutions that compute the same.
        num_classes: of the data set.
        image_shape: (C, H, W).
        normalize: see `parse_normalization`; needed where the file does not have the constants.

    Raises:
        CheckpointError: tensors that do not fit are named.
    """
    published = read_published(path)
    given = None if normalize is None else parse_normalization(normalize)
    if published.constants is not None and not _usable(*published.constants):
        mean, std = published.constants
        raise CheckpointError(
            f"{path}: expected a normalisation by finite numbers, deviations above 0, got mean "
            f"{list(mean)} and deviation {list(std)}; download it again"
        )
    constants = _one_of(published.constants, given, path)
    known = [name for name, entry in ARCHITECTURES.items() if entry.normalize]
    if arch not in known:
        raise UnknownName("architecture", arch, known, unlisted=FACTORY_FORM)
    if len(constants[0]) != image_shape[0]:
        raise BadInput(
            f"normalize: expected {image_shape[0]} channels, got {len(constants[0])}; pass a "
            "number for each channel"
        )
    model = create_model(
        arch,
        num_classes=num_classes,
        image_shape=image_shape,
        mean=constants[0],
        std=constants[1],
    )
    assert isinstance(model, nn.Sequential)
    network = model[1]
    assumed = _load_into(network, published.tensors, where=f"{path} as {arch}")
    return model.eval(), dataclasses.replace(published, used=constants, assumed=assumed)


def _one_of(known: Constants | None, given: Constants | None, path: AnyPath) -> Constants:
    if known is None and given is None:
        raise BadInput(
            f"normalize: expected how the images were normalised, which {path} does not say, got "
            "none; cifar10 for networks of Cohen et al. on CIFAR-10, imagenet, none, or MEAN/STD"
        )
    if known is not None and given is not None:
        pairs = zip((*known[0], *known[1]), (*given[0], *given[1]), strict=False)
        if len(known[0]) != len(given[0]) or any(abs(a - b) > 1e-4 for a, b in pairs):
            raise BadInput(
                f"normalize: expected mean {list(known[0])} and deviation {list(known[1])}, as "
                f"{path} has, got {list(given[0])} and {list(given[1])}; leave it out"
            )
    constants = known or given
    assert constants is not None
    return constants


def _load_into(
    network: nn.Module, tensors: Mapping[str, torch.Tensor], *, where: str
) -> str | None:
    """Load weights by their published names; returns `Published.assumed`."""
    assumed = None
    wanted = network.state_dict()
    own = dict(zip(_published_names(network), wanted, strict=True))
    found = {own.get(name, name): tensor for name, tensor in tensors.items()}
    for name, tensor in wanted.items():
        if name.endswith("num_batches_tracked"):
            found.setdefault(name, tensor)  # which old versions of torch do not have
    named = any(".shortcut." in name and "tracked" not in name for name in found)
    if not named and isinstance(network, CifarResNet):
        found |= _identity_shortcuts(wanted)
        assumed = (
            "no weights of shortcuts in the file: taken as option A, every other pixel and as many "
            "channels of zeros before as after the others"
        )
    problems = misfits(found, wanted)
    if problems:
        raise weights_do_not_fit(where, problems)
    state = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in found.items()
    }
    refuse_non_finite(state, where=where)
    network.load_state_dict(state)
    return assumed


def refuse_non_finite(tensors: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Refuse weights that are not numbers, as a training that diverged leaves them."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"{where}: {name}: expected finite weights, got NaN or infinity in {count} of "
                f"{tensor.numel()}; use a checkpoint from before the training diverged"
            )
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise CheckpointError(
                f"{where}: {name}",
                expected="variances of at least 0",
                got=f"{float(tensor.min()):g}",
                fix="download it again",
            )


def misfits(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> list[str]:
    """What is missing, unknown, or of another shape or kind of number."""
    problems = [f"no {name}" for name in wanted if name not in found]
    problems += [f"unknown {name}" for name in found if name not in wanted]
    problems += [
        f"{name} is {tuple(found[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    problems += [
        f"{name} is {str(found[name].dtype).removeprefix('torch.')}"
        for name, tensor in wanted.items()
        if name in found and tensor.is_floating_point() > found[name].is_floating_point()
    ]
    return problems


def weights_do_not_fit(where: str, problems: Sequence[str]) -> CheckpointError:
    """The error that names the first of them."""
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return CheckpointError(
        f"{where}: weights do not fit ({'; '.join(problems[:3])}{more})",
        fix="name the architecture that was trained, and its number of classes",
    )


def _published_names(network: nn.Module) -> list[str]:
    """For each tensor of a registered network, its name in the code that others share.

    Their stages are layer1, layer2, ...; ours are stage1, ... in CIFAR networks, and blocks counted
    through in those for larger images.
    """
    names, stage, first = list[str](), 0, 0
    known = dict[int, tuple[int, int]]()
    for name in network.state_dict():
        name = re.sub(r"^stage(\d)\.", r"layer\1.", name)
        block = re.match(r"blocks\.(\d+)\.", name)
        if block:
            number = int(block[1])
            if number not in known:
                wide = network.get_submodule(f"blocks.{number}")
                strided = any(
                    isinstance(part, nn.Conv2d) and part.stride[0] > 1 for part in wide.modules()
                )
                if number == 0 or strided:
                    stage, first = stage + 1, number
                known[number] = (stage, number - first)
            name = f"layer{known[number][0]}.{known[number][1]}.{name[block.end() :]}"
        names.append(name)
    return names


def _identity_shortcuts(wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Shortcuts by dropping pixels and padding channels with zeros on both sides, as convolutions.

    What weights such a network has does not say on which side the zeros are: half of them on each
    is what the published code has.
    """
    made: dict[str, torch.Tensor] = {}
    for name, tensor in wanted.items():
        if ".shortcut." not in name:
            continue
        value = torch.zeros_like(tensor)
        if tensor.ndim == 4:
            outside, inside = tensor.shape[:2]
            before = (outside - inside) // 2
            value[before : before + inside, :, 0, 0] = torch.eye(inside)
        elif name.endswith("running_var"):
            value = torch.full_like(tensor, 1 - nn.BatchNorm2d(1).eps)
        elif name.endswith(".weight"):
            value = torch.ones_like(tensor)
        made[name] = value
    return made
