"""How far outputs of two forms of a network are apart."""

import math

import torch

from sween.errors import ContractError

SAME_OUTPUT = 1e-4
"""Rounding changes outputs by far less, in units of `class_scales`; randomness, or a module that
mixes its batch, by far more."""


CHANGE_ALLOWED = {torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3, torch.int8: 0.3}
"""How far preparation may change outputs, relative to their range: more is not just rounding."""


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


FAR_BELOW = 10.0
"""A class is masked if its outputs are below those of all others by more than this many times their
range: it is not in `relative_change`'s range, of which the changes that float16 may make would be
as large as the range of these."""


def relative_change(outputs: object, wanted: object) -> float:
    """The largest difference between two outputs, relative to the range of `wanted`.

    That of masked classes, see `FAR_BELOW`, is relative to how far they are behind.
    """
    if not isinstance(outputs, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return 0.0  # such outputs are refused later, with a better message
    if outputs.shape != wanted.shape:
        return math.inf
    if not torch.isfinite(wanted).all():
        return 0.0  # likewise
    difference = (outputs - wanted).abs()
    if wanted.ndim != 2:
        return ratio(float(difference.max()), float(wanted.max() - wanted.min()))
    kept = _not_masked(wanted)
    own = wanted[:, kept]
    change = ratio(float(difference[:, kept].max()), float(own.max() - own.min()))
    if kept.all():
        return change
    behind = (own.max() - wanted[:, ~kept]).abs()
    return max(change, float((difference[:, ~kept] / behind).nan_to_num(math.inf).max()))


def _not_masked(outputs: torch.Tensor) -> torch.Tensor:
    """Which classes of outputs (B, M) are not masked, two at least: (M,) of bool."""
    tops, order = outputs.amax(dim=0).sort(descending=True)
    lowest = outputs.amin(dim=0)[order].cummin(dim=0).values
    # The range of the first classes, and whether the next one is far below all of them.
    far = tops[1:] < lowest[:-1] - FAR_BELOW * (tops[0] - lowest[:-1])
    far[:1] = False
    first_far = int(far.int().argmax()) + 1 if far.any() else len(tops)
    kept = torch.zeros_like(tops, dtype=torch.bool)
    kept[order[:first_far]] = True
    return kept


def ratio(difference: float, spread: float) -> float:
    """difference / spread; any difference of outputs without a range is infinitely large."""
    if spread:
        return difference / spread
    return difference and math.inf


def refuse_change(change: float, dtype: torch.dtype) -> None:
    """Refuse a form in this arithmetic whose outputs are too far from the module's."""
    allowed = CHANGE_ALLOWED[dtype]
    if not change <= allowed:
        raise ContractError(
            "model",
            expected=f"outputs in {str(dtype).removeprefix('torch.')} that differ from those "
            f"in its own arithmetic by at most {allowed:g} of their range",
            got=f"{change:.2g}",
            fix="use float32 precision; turn off dropout and anything else that is random",
        )
