"""How far outputs of two forms of a network are apart."""

import math

import torch

SAME_OUTPUT = 1e-4
"""Rounding changes outputs by far less, in units of `class_scales`; randomness, or a module that
mixes its batch, by far more."""


def class_scales(outputs: torch.Tensor) -> torch.Tensor:
    """By how much each class's output (B, M) varies, relative to its row's largest output: (M,).

    Class by class, since a single large constant output, such as that of a masked class, would make
    any other difference look small. The shares of the magnitudes allow for rounding where outputs
    hardly vary, or where one class always leads.
    """
    behind = outputs - outputs.amax(dim=1, keepdim=True)
    ranges = behind.amax(dim=0) - behind.amin(dim=0)
    return ranges + 0.1 * behind.abs().amax(dim=0) + 0.01 * outputs.abs().amax(dim=0)


def largest_difference(outputs: torch.Tensor, wanted: torch.Tensor, scales: torch.Tensor) -> float:
    """The largest difference between two outputs (B, M), in units of `class_scales`; NaN if any."""
    behind, wanted_behind = (own - own.amax(dim=1, keepdim=True) for own in (outputs, wanted))
    difference = (behind - wanted_behind).abs()
    return float(torch.where(difference == 0, 0.0, difference / scales).max())


def relative_change(outputs: object, wanted: object) -> float:
    """The largest difference between two outputs, relative to the range of `wanted`."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return 0.0  # such outputs are refused later, with a better message
    if outputs.shape != wanted.shape:
        return math.inf
    if not torch.isfinite(wanted).all():
        return 0.0
    return ratio(float((outputs - wanted).abs().max()), float(wanted.max() - wanted.min()))


def ratio(difference: float, spread: float) -> float:
    """difference / spread; any difference of outputs without a range is infinitely large."""
    if spread:
        return difference / spread
    return difference and math.inf
