"""From two sets of votes to a certified answer. No torch here, so that anyone can check it."""

import dataclasses
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import special

from sween.errors import BadInput, SmallSampleWarning, UnknownName
from sween.records import ABSTAIN
from sween.smoothing.bounds import check_probability, lower_bound
from sween.smoothing.radius import (
    BOUNDS,
    SHARE_OF_CLASS_A,
    check_sigma,
    fewest_certified_votes,
    radius_cohen,
    radius_two_class,
    smallest_certifiable_n,
)

WARN_ABOVE_SHARE = 0.8
"""Warn when even four votes in five are not enough to be certified."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the votes prove: the parts of a certificate that can be re-derived."""

    prediction: int
    radius: float
    radius_cohen: float
    radius_two_class: float
    candidate: int
    lower_bound: float


def decide(
    selection_counts: Sequence[int],
    estimation_counts: Sequence[int],
    *,
    alpha: float,
    sigma: float,
    bound: str = "cohen",
) -> Decision:
    """Cohen et al.'s CERTIFY, with the bound asked for.

    The class is chosen by the selection votes alone (the lowest on a tie); the bounds use the
    estimation votes alone. The two must be independent draws: sharing votes makes the failure
    probability exceed alpha. Then with probability at least 1 - alpha over the estimation votes,
    either this abstains or the smoothed classifier answers `prediction` everywhere closer than
    `radius` (Theorem 1 of the paper; see `radius_cohen` and `radius_two_class`).
    """
    candidate = int(np.argmax(selection_counts))
    n = int(np.sum(estimation_counts))
    count = int(estimation_counts[candidate])
    rivals = [int(votes) for k, votes in enumerate(estimation_counts) if k != candidate]
    cohen = float(radius_cohen(count, n, alpha=alpha, sigma=sigma))
    two_class = float(radius_two_class(count, max(rivals), n, alpha=alpha, sigma=sigma))
    radius = cohen if bound == "cohen" else two_class
    level = alpha if bound == "cohen" else SHARE_OF_CLASS_A * alpha
    return Decision(
        prediction=candidate if radius > 0 else ABSTAIN,
        radius=radius,
        radius_cohen=cohen,
        radius_two_class=two_class,
        candidate=candidate,
        lower_bound=float(lower_bound(count, n, level)),
    )


def check_certify_arguments(
    *, n0: int, n: int, alpha: float, sigma: float, bound: str = "cohen"
) -> None:
    """Refuse settings under which nothing could be certified; warn where almost nothing will."""
    check_probability("alpha", alpha)
    check_sigma(sigma)
    if bound not in BOUNDS:
        raise UnknownName("bound", bound, BOUNDS)
    if n0 < 1:
        raise BadInput("n0", expected="at least 1 selection vote", got=n0, fix="the paper uses 100")
    if n < 1:
        raise BadInput("n", expected="at least 1 vote", got=n, fix="the paper uses 100000")
    least = smallest_certifiable_n(alpha, bound)
    if n < least:
        raise BadInput(
            f"n = {n} can never certify at alpha = {alpha} with the {bound} bound: even {n} of {n} "
            f"votes only show p > {_best_lower_bound(n, alpha, bound):.4f}, not above 1/2",
            fix=f"use n >= {least}; the paper uses 100000",
        )
    fewest = fewest_certified_votes(n, alpha)
    if fewest > WARN_ABOVE_SHARE * n and bound == "cohen":
        warnings.warn(
            f"n = {n} at alpha = {alpha} certifies only images with at least {fewest} of {n} votes "
            f"({fewest / n:.0%}); most will abstain; the paper uses n = 100000",
            SmallSampleWarning,
            stacklevel=3,
        )


def _best_lower_bound(n: int, alpha: float, bound: str) -> float:
    level = alpha if bound == "cohen" else SHARE_OF_CLASS_A * alpha
    return float(lower_bound(n, n, level))


def binomial_p_value(top: int, second: int) -> float:
    """Two-sided p-value of a fair coin giving `top` against `second`, rounded up."""
    if top == second:
        return 1.0
    # P(Binomial(top + second, 1/2) >= top) = I_{1/2}(top, second + 1)
    return min(1.0, 2 * float(special.betainc(top, second + 1, 0.5)) * (1 + 1e-9))


def decide_prediction(counts: Sequence[int], *, alpha: float) -> tuple[int, float]:
    """Cohen et al.'s PREDICT: the leading class, or ABSTAIN, and the p-value.

    The answer differs from the smoothed classifier's with probability at most alpha (Proposition 2
    of Cohen et al. 2019, by Hung and Fithian 2019): a two-sided binomial test that the two leading
    classes are equally likely, among the votes for either.
    """
    order = np.argsort(-np.asarray(counts), kind="stable")
    top, second = int(counts[order[0]]), int(counts[order[1]])
    p_value = binomial_p_value(top, second)
    return (int(order[0]) if p_value <= alpha else ABSTAIN), p_value


def check_predict_arguments(*, n: int, alpha: float, sigma: float) -> None:
    """Refuse settings under which every prediction would abstain."""
    check_probability("alpha", alpha)
    check_sigma(sigma)
    if n < 1:
        raise BadInput("n", expected="at least 1 vote", got=n, fix="try 100")
    if binomial_p_value(n, 0) > alpha:
        least = n
        while binomial_p_value(least, 0) > alpha:
            least += 1
        raise BadInput(
            f"n = {n} always abstains at alpha = {alpha}: {n} of {n} votes have the p-value "
            f"2 * 2^-{n} = {2 * 2.0**-n:.4g}, above alpha",
            fix=f"use n >= {least}",
        )
