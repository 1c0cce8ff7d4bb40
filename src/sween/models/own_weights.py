"""Trained weights for an architecture of one's own, `package.module:factory` or `timm:NAME`."""

import re
from collections.abc import Collection, Mapping

import torch
from torch import nn

from sween.models.published import (
    Plain,
    misfits,
    read_weights,
    refuse_non_finite,
    weights_do_not_fit,
)
from sween.models.registry import check_member, create_model
from sween.paths import AnyPath

_WRAPPERS = re.compile(r"\b(?:module|_orig_mod)\.")
"""What DataParallel and torch.compile put into the names."""


def own_network(
    path: AnyPath, arch: str, *, num_classes: int, image_shape: tuple[int, int, int]
) -> tuple[nn.Module, Mapping[str, Plain]]:
    """The network that a factory returns, with the weights of a file; no code in the file is run.

    The file may have the weights of the whole network, or of the part of it that has all its
    parameters: a network that was trained on normalised images, behind a layer that normalises,
    needs no new file. Every parameter comes from the file; only buffers in front of such a part
    (mean and deviation) are the factory's.

    Args:
        path: written by torch.save or safetensors.
        arch: its module is imported.
        num_classes: of the data set.
        image_shape: (C, H, W).

    Returns:
        The network in evaluation mode, and the plain values that the file has besides weights.

    Raises:
        CheckpointError: tensors that do not fit are named.
        ContractError: the network does not map such images to logits.
    """
    tensors, about = read_weights(path)
    model = create_model(arch, num_classes=num_classes, image_shape=image_shape)
    wanted = model.state_dict()
    learned = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    found = min(
        (
            _placed(names, wanted, strip, part)
            for names in (tensors, {_WRAPPERS.sub("", name): tensors[name] for name in tensors})
            for strip in _shared_prefixes(names)
            for part in _shared_prefixes(learned)
        ),
        key=lambda candidate: len(misfits(candidate, wanted)),
    )
    problems = misfits(found, wanted)
    if problems:
        raise weights_do_not_fit(f"{path} as {arch}", problems)
    # Buffers may hold infinities, as masks of attention do.
    refuse_non_finite({name: found[name] for name in learned}, where=f"{path} as {arch}")
    model.load_state_dict(found)
    check_member(model, num_classes=num_classes, image_shape=image_shape)
    return model.eval(), about


def _shared_prefixes(names: Collection[str]) -> list[str]:
    """Nothing, `net.`, `net.body.`: what all of these names begin with, in whole parts."""
    first = next(iter(names), "")
    prefixes = [first[: dot.end()] for dot in re.finditer(r"\.", first)]
    return ["", *(each for each in prefixes if all(name.startswith(each) for name in names))]


def _placed(
    tensors: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    strip: str,
    part: str,
) -> dict[str, torch.Tensor]:
    """Tensors of a file under the names of a network's part, and what files may lack."""
    found = {part + name.removeprefix(strip): tensor for name, tensor in tensors.items()}
    for name, tensor in wanted.items():
        # Outside the part are buffers alone; old versions of torch do not count batches.
        if not name.startswith(part) or name.endswith("num_batches_tracked"):
            found.setdefault(name, tensor)
    return found
