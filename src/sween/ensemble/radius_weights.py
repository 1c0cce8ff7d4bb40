"""Weights on the simplex that maximise a smooth surrogate of the average certified radius.

S noisy copies of each held-out image are drawn once. With weights w, a copy counts as correct if
its margin, min over c != y of sum_k w_k (p_k[y] - p_k[c]), is positive, and an image has the radius
that so many correct votes of S certify. That mean radius is the objective. It is piecewise constant
in w, so gradients come from soft votes, sigmoid(margin / temperature), and from the radius
interpolated between whole counts.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from sween.bounds.radius import radius_cohen
from sween.progress import track
from sween.sampling.settings import ALPHA

STEPS = 100
TEMPERATURE = 0.05
"""Of the soft votes, in units of probability."""

_FIRST_STEP = 0.5
_SMALLEST = 1e-6
"""Weight of a member that a start leaves out, so that it can come back."""

_OWN_CLASS = 2.0
"""For the true class itself: above every margin, so that it is never the least."""

_CHUNK = 10**7
"""Numbers of the margins that are weighted at once."""


@dataclasses.dataclass(frozen=True)
class RadiusSolution:
    """Weights, the mean radius of their votes, the largest radius there is, and the steps taken."""

    weights: torch.Tensor
    radius: float
    largest: float
    steps: int


def margins_of(probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of members' probabilities (R, K, M) of R noisy copies: p[y] - p[c] for each class c."""
    own = probabilities.gather(2, labels.view(-1, 1, 1).expand(-1, probabilities.shape[1], 1))
    return (own - probabilities).scatter(2, labels.view(-1, 1, 1).expand_as(own), _OWN_CLASS)


class RadiusObjective:
    """The mean radius as a function of weights.

    Args:
        margins: (N * S, K, M) of `margins_of`, the copies of an image one after another.
        samples: S.
        sigma: noise level.
    """

    def __init__(self, margins: torch.Tensor, *, samples: int, sigma: float) -> None:
        self.margins, self.samples = margins, samples
        counts = np.arange(samples + 1)
        table = radius_cohen(counts, samples, alpha=ALPHA, sigma=sigma)
        self._table = torch.from_numpy(table).to(margins.device)
        self.largest = float(table[-1])

    def __call__(self, weights: torch.Tensor) -> float:
        """The mean radius of the votes themselves."""
        with torch.no_grad():
            correct = torch.cat([least > 0 for least in self._least(weights)])
        counts = correct.view(-1, self.samples).sum(dim=1)
        return float(self._table[counts].mean())

    def ascent(self, weights: torch.Tensor) -> torch.Tensor:
        """The gradient of the smooth surrogate, (K,) in float64."""
        with torch.no_grad():
            votes = torch.cat(
                [torch.sigmoid(least / TEMPERATURE) for least in self._least(weights)]
            )
            counts = votes.view(-1, self.samples).double().sum(dim=1)
            whole = counts.floor().long().clamp(max=self.samples - 1)
            slopes = self._table[whole + 1] - self._table[whole]  # of the radius, for each image
        weighted = slopes.repeat_interleave(self.samples) * (votes * (1 - votes) / TEMPERATURE)
        point, gradient = weights.clone().requires_grad_(), torch.zeros_like(weights)
        start = 0
        for least in self._least(point):
            rows = weighted[start : start + len(least)]
            gradient += torch.autograd.grad((rows * least).sum(), point)[0]
            start += len(least)
        return gradient / len(counts)

    def _least(self, weights: torch.Tensor) -> Sequence[torch.Tensor]:
        """The margin of every copy, in parts."""
        rows = max(1, _CHUNK // self.margins[0].numel())
        shares = weights.to(self.margins.dtype)
        return [
            torch.einsum("rkm,k->rm", part, shares).amin(dim=1)
            for part in torch.split(self.margins, rows)
        ]


def maximise_radius(
    objective: RadiusObjective, starts: Sequence[torch.Tensor], *, quiet: bool = True
) -> RadiusSolution:
    """The best weights, by the votes themselves, on exponentiated gradient paths from some starts.

    The starts are among the candidates, so that the result is never below any of them. The
    objective is not concave: a better optimum may exist elsewhere.
    """
    best, found, taken = -math.inf, starts[0], 0
    with track("climb on weights", len(starts) * (STEPS + 1), quiet=quiet) as advance:
        for start in starts:
            logarithms, candidate = start.clamp(min=_SMALLEST).log(), start
            for step in range(STEPS + 1):
                radius = objective(candidate)
                if radius > best:
                    best, found, taken = radius, candidate, step
                ascent = objective.ascent(candidate)
                largest = float(ascent.abs().max())
                # Steps of falling length in the direction of the gradient, whatever its size; none
                # where no image's radius depends on the weights.
                length = _FIRST_STEP / (1 + step) ** 0.5 / largest if largest else 0.0
                logarithms = logarithms + length * ascent
                candidate = logarithms.softmax(dim=0)
                advance(1, f"radius {best:.4f}")
    return RadiusSolution(found, best, objective.largest, taken)
