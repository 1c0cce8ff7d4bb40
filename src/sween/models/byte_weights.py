"""Weights in 8 bits: whole numbers from -127 to 127 with a scale for each output channel.

A checkpoint of such weights is a quarter as large as in float32. A scale has 17 significant bits,
so that its products with these numbers are exact in float32: the network in memory and the file
have the same weights, to the bit.
"""

from collections.abc import Mapping

import torch
from torch import nn

LARGEST = 127

SCALE = "_scale"
"""What the name of a scale has behind that of its weights."""

_DROPPED_BITS = 7


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Round the weights of convolutions and linear layers to 8 bits, in place.

    Biases and batch norms stay as they are.

    Example:
        >>> import sween
        >>> from sween.models.byte_weights import round_weights
        >>> network = sween.create_model("digits-mlp", num_classes=10, image_shape=(1, 8, 8))
        >>> round_weights(network)
        >>> weight = next(part.weight for part in network.modules() if hasattr(part, "in_features"))
        >>> len(weight[0].unique()) <= 255
        True
    """
    for name, parameter in model.named_parameters():
        if _is_weight(name, parameter):
            flat = parameter.detach().flatten(1).float()
            scale = flat.abs().amax(dim=1, keepdim=True) / LARGEST
            half = 1 << (_DROPPED_BITS - 1)
            bits = (scale.view(torch.int32) + half) >> _DROPPED_BITS << _DROPPED_BITS
            whole = _whole(flat, bits.view(torch.float32))
            parameter.copy_((whole * bits.view(torch.float32)).view_as(parameter))


def packed(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a state with rounded weights as int8 and their scales.

    Raises:
        ValueError: weights were not rounded by `round_weights`.
    """
    found = dict(tensors)
    for name, tensor in tensors.items():
        if not _is_weight(name, tensor):
            continue
        flat = tensor.flatten(1).float()
        scale = flat.abs().amax(dim=1, keepdim=True) / LARGEST
        whole = _whole(flat, scale)
        if not torch.equal(whole * scale, flat):
            raise ValueError(f"{name} was not rounded to 8 bits")
        found[name] = whole.to(torch.int8).view_as(tensor)
        found[name + SCALE] = scale[:, 0].clone()
    return found


def unpacked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state that `packed` was given; other states as they are."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        scale = tensors.get(name + SCALE)
        if tensor.dtype == torch.int8 and scale is not None and len(scale) == len(tensor):
            product = tensor.flatten(1).float() * scale.float()[:, None]
            found[name] = product.view(tensor.shape)
            del found[name + SCALE]
    return found


def _is_weight(name: str, tensor: torch.Tensor) -> bool:
    return name.endswith("weight") and tensor.ndim >= 2 and tensor.is_floating_point()


def _whole(flat: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, flat / scale, 0.0).round()
