"""Checks of images, labels and indices that callers pass in."""

from collections.abc import Sequence

import numpy as np
import torch

from sween.errors import BadInput, describe_type

_ROUNDING = 0.01
"""Values this far outside [0, 1] are taken for resampling overshoot, not for another scale."""


def check_images(images: torch.Tensor, *, what: str = "images") -> None:
    """Refuse a batch (N, C, H, W), or image (C, H, W), that is not float32 in [0, 1].

    sigma and every radius are in those units, so a batch in other units would not crash but yield
    meaningless certificates. `what` is the argument's name in the error.

    Example:
        >>> import torch
        >>> from sween.data import check_images
        >>> check_images(torch.rand(2, 3, 8, 8))
        >>> check_images(255 * torch.ones(2, 3, 8, 8))
        Traceback (most recent call last):
            ...
        sween.errors.BadInput: images: expected pixels in [0, 1], got values from 255.0 to ...
    """
    if not isinstance(images, torch.Tensor) or images.dtype != torch.float32:
        kind = str(getattr(images, "dtype", "")).removeprefix("torch.")
        raise BadInput(
            what,
            expected="a float32 torch tensor in [0, 1]",
            got=describe_type(images) + (f" of {kind}" if kind else ""),
            fix="convert with torch.as_tensor(...).float()" + (" / 255" if kind == "uint8" else ""),
        )
    if images.ndim not in (3, 4) or images.numel() == 0:
        raise BadInput(
            what,
            expected="a batch (N, C, H, W) or one image (C, H, W), not empty",
            got=f"shape {tuple(images.shape)}",
            fix="reshape it, channels before height and width",
        )
    # aminmax propagates NaN, so one pass over the pixels covers both checks.
    smallest, largest = (bound.item() for bound in torch.aminmax(images.detach()))
    if not (float("-inf") < smallest and largest < float("inf")):
        count = int((~torch.isfinite(images)).sum().item())
        raise BadInput(
            what,
            expected="finite pixels",
            got=f"{count} NaN or infinite values of {images.numel()}",
            fix="check the preprocessing for a division by zero",
        )
    if smallest < 0 or largest > 1:
        raise BadInput(
            what,
            expected="pixels in [0, 1]",
            # float32 prints the shortest decimal that identifies it
            got=f"values from {np.float32(smallest)!s} to {np.float32(largest)!s}",
            fix=_range_fix(smallest, largest),
        )


def _range_fix(smallest: float, largest: float) -> str:
    if smallest >= -_ROUNDING and largest <= 1 + _ROUNDING:
        return "clamp them with .clamp(0, 1)"
    if smallest < 0:
        return "remove normalisation: it belongs inside the model"
    return "divide by 255"


def check_indices(indices: Sequence[int] | int | None, count: int) -> list[int]:
    """The images' indices, by default their positions; refuse duplicates and a wrong number."""
    if indices is None:
        return list(range(count))
    keys: list[int] = whole_numbers("indices", indices).tolist()
    if len(keys) != count or len(set(keys)) != count or min(keys) < 0:
        raise BadInput(
            "indices",
            expected=f"{count} distinct indices of at least 0, one per image",
            got=keys if len(keys) < 8 else f"{len(keys)} numbers",
            fix="pass each image's index in its data set",
        )
    return keys


def check_labels(
    labels: Sequence[int] | torch.Tensor | int | None, count: int, num_classes: int
) -> list[int | None]:
    """The true classes, all None if unknown; refuse classes that do not exist."""
    if labels is None:
        return [None] * count
    values: list[int] = whole_numbers("labels", labels).tolist()
    if len(values) != count or not all(0 <= label < num_classes for label in values):
        raise BadInput(
            "labels",
            expected=f"{count} classes from 0 to {num_classes - 1}",
            got=values if len(values) < 8 else f"{len(values)} numbers up to {max(values)}",
            fix="pass the true class of each image",
        )
    return list(values)


def whole_numbers(what: str, values: object) -> torch.Tensor:
    """Whole numbers, one per image: int64 of shape (N,), on the CPU."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            what, expected="whole numbers", got=error, fix="pass a list of ints"
        ) from None
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if not whole or tensor.ndim > 1:
        raise BadInput(
            what,
            expected="whole numbers, one per image",
            got=type_and_shape(tensor),
            fix="pass a list of ints",
        )
    return tensor.detach().flatten().to("cpu", torch.int64)


def type_and_shape(tensor: torch.Tensor) -> str:
    """For errors: `float32 of shape (3, 8, 8)`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
