"""How often training images are drawn: hard ones never, easy ones more often (Sun et al. 2025)."""

import dataclasses

import numpy as np
import torch
from scipy import special

from sween.bounds.binomial import lower_bound
from sween.errors import BadInput

REWEIGH_COPIES = 16
"""Noisy copies of each image from which its weight is computed."""

SMALLEST_SHARE = 0.75
"""Shares of correct copies below this count as this: such images all have the smallest weight."""

ALPHA = 0.1
"""Of the one-sided Clopper-Pearson bound in the weight."""


@dataclasses.dataclass(frozen=True)
class ImageWeighing:
    """When and how images are weighed.

    Attributes:
        start: epoch from which they are drawn by weight, with replacement.
        drop_below: images with a smaller share of correct noisy copies at the start are dropped.
        votes: noisy copies of each image for that.
        every: epochs between two computations of the weights; 0 for equal weights.
    """

    start: int
    drop_below: float
    votes: int
    every: int


def keep_easy(correct: torch.Tensor, votes: int, drop_below: float) -> torch.Tensor:
    """Equal weights for images with enough correct copies, 0 for the others: (N,), float64."""
    kept = correct.double() / votes >= drop_below
    if not kept.any():
        raise BadInput(
            "drop_below",
            expected="a share of correct noisy copies that some training image reaches",
            got=f"{drop_below:g}, where the largest share is {float(correct.max()) / votes:g}",
            fix="lower it, or let `reweigh_from` be a later epoch",
        )
    return kept.double()


def weigh_images(correct: torch.Tensor) -> torch.Tensor:
    """The weight of images of which some of `REWEIGH_COPIES` noisy copies are correct: (N,).

    The inverse normal of the Clopper-Pearson lower bound on the probability of being correct, in
    proportion to the radius that so many votes would certify.
    """
    counts = np.arange(REWEIGH_COPIES + 1)
    counted = np.maximum(counts, int(SMALLEST_SHARE * REWEIGH_COPIES))
    table = special.ndtri(lower_bound(counted, REWEIGH_COPIES, ALPHA))
    return torch.from_numpy(table).to(correct.device)[correct.long()]
