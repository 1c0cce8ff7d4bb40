"""From two sets of votes to a certified answer. No torch here, so that anyone can check it."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import special

from sween.bounds.anytime import sequential_miss
from sween.bounds.binomial import lower_bound
from sween.bounds.radius import (
    bound_of,
    radius_cohen,
    radius_of_miss,
    radius_two_class,
)
from sween.bounds.scores import soft_miss
from sween.records import ABSTAIN


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the votes prove: the parts of a certificate that can be re-derived."""

    prediction: int
    radius: float
    radius_cohen: float
    radius_two_class: float | None
    candidate: int
    lower_bound: float


def decide(
    selection_counts: Sequence[int],
    estimation_counts: Sequence[int],
    *,
    alpha: float,
    sigma: float,
    bound: str = "cohen",
    n: int | None = None,
) -> Decision:
    """Cohen et al.'s CERTIFY, with the bound asked for.

    The class is chosen by the selection votes alone (the lowest on a tie); the bounds use the
    estimation votes alone. The two must be independent draws: sharing votes makes the failure
    probability exceed alpha. Then with probability at least 1 - alpha over the estimation votes,
    either this abstains or the smoothed classifier answers `prediction` everywhere closer than
    `radius` (Theorem 1 of the paper; see `radius_cohen` and `radius_two_class`). Without estimation
    votes, where a budget spends none on an image, it abstains.

    Of n votes drawn, those that counted for no class are taken to be against the answer: not for
    its class, and all for the runner-up. n is the sum of the counts when None.
    """
    n = int(np.sum(estimation_counts)) if n is None else n
    (decision,) = decide_each(
        [selection_counts], [estimation_counts], [n], alpha=alpha, sigma=sigma, bound=bound
    )
    return decision


def decide_each(
    selection_counts: Sequence[Sequence[int]],
    estimation_counts: Sequence[Sequence[int]],
    drawn: Sequence[int],
    *,
    alpha: float,
    sigma: float,
    bound: str,
) -> list[Decision]:
    """`decide` for the votes of many images, at hardly the cost of one image."""
    own = bound_of(bound)
    candidates = [int(np.argmax(counts)) for counts in selection_counts]
    decisions = [Decision(ABSTAIN, 0.0, 0.0, 0.0, candidate, 0.0) for candidate in candidates]
    voted = [place for place, n in enumerate(drawn) if n > 0]
    if not voted:
        return decisions
    leading = []
    for place in voted:
        counts, n = estimation_counts[place], drawn[place]
        count, rival = _leading(candidates[place], counts)
        leading.append((count, rival + n - sum(counts), n))
    votes, rivals, totals = np.asarray(leading).T
    radii = {
        "cohen": radius_cohen(votes, totals, alpha=alpha, sigma=sigma),
        "two-class": radius_two_class(votes, rivals, totals, alpha=alpha, sigma=sigma),
    }
    if bound not in radii:
        radii[bound] = own.radius(votes, rivals, totals, alpha=alpha, sigma=sigma)
    lowers = lower_bound(votes, totals, own.class_share * alpha).tolist()
    columns = (radii[name].tolist() for name in (bound, "cohen", "two-class"))
    for place, radius, cohen, two_class, lower in zip(voted, *columns, lowers, strict=True):
        candidate = candidates[place]
        prediction = candidate if radius > 0 else ABSTAIN
        decisions[place] = Decision(prediction, radius, cohen, two_class, candidate, lower)
    return decisions


def _leading(candidate: int, counts: Sequence[int]) -> tuple[int, int]:
    """Votes for the class, and the most for any other."""
    rivals = [int(votes) for k, votes in enumerate(counts) if k != candidate]
    return int(counts[candidate]), max(rivals)


def decide_radii(
    selection_counts: Sequence[int],
    estimation_counts: Sequence[int],
    radii: Sequence[float],
    *,
    largest: int,
    alpha: float,
    sigma: float,
    n: int | None = None,
) -> tuple[Decision, dict[str, bool]]:
    """The answer of a sequence that was stopped as soon as all radii were settled.

    The class is chosen by the selection votes alone. The bound on its probability holds at every
    look at once with probability at least 1 - alpha (see `sequential_miss`), so stopping at any of
    them, for any reason, is allowed, and all radii are decided by it without a correction. A radius
    with the answer False is not certified; that claims nothing. The two-class radius cannot be had.

    Args:
        selection_counts: of the pilot.
        estimation_counts: at the look at which it stopped.
        radii: to decide.
        largest: votes at which the sequence would have ended.
        alpha: failure probability of everything said.
        sigma: noise level.
        n: votes drawn at that look, the sum of the counts when None; see `decide`.
    """
    n = int(np.sum(estimation_counts)) if n is None else n
    (answer,) = decide_radii_each(
        [selection_counts],
        [estimation_counts],
        radii,
        [n],
        largest=largest,
        alpha=alpha,
        sigma=sigma,
    )
    return answer


def decide_radii_each(
    selection_counts: Sequence[Sequence[int]],
    estimation_counts: Sequence[Sequence[int]],
    radii: Sequence[float],
    drawn: Sequence[int],
    *,
    largest: int,
    alpha: float,
    sigma: float,
) -> list[tuple[Decision, dict[str, bool]]]:
    """`decide_radii` for the votes of many images, at hardly the cost of one image."""
    candidates = [int(np.argmax(counts)) for counts in selection_counts]
    counts = [own[k] for own, k in zip(estimation_counts, candidates, strict=True)]
    misses = sequential_miss(np.asarray(counts), np.asarray(drawn), largest=largest, alpha=alpha)
    return [
        _decided(candidate, miss, radii, sigma)
        for candidate, miss in zip(candidates, misses.tolist(), strict=True)
    ]


def _decided(
    candidate: int, miss: float, radii: Sequence[float], sigma: float
) -> tuple[Decision, dict[str, bool]]:
    decision = _decision_of_miss(candidate, miss, sigma)
    return decision, {repr(float(wanted)): 0 < decision.radius >= wanted for wanted in radii}


def _decision_of_miss(candidate: int, miss: float, sigma: float) -> Decision:
    """What a bound on the probability of all other classes proves, by Cohen's radius."""
    radius = float(radius_of_miss(miss, sigma))
    return Decision(
        prediction=candidate if radius > 0 else ABSTAIN,
        radius=radius,
        radius_cohen=radius,
        radius_two_class=None,
        candidate=candidate,
        lower_bound=float(np.maximum(np.nextafter(1 - miss, 0), 0.0)),
    )


def decide_soft(
    selection_counts: Sequence[int],
    pilot_scores: Sequence[int],
    scores: Sequence[int],
    *,
    n: int,
    alpha: float,
    sigma: float,
) -> Decision:
    """The answer of soft votes: the classifier is argmax_k E f_k; see `soft.py`.

    The class is the one with most hard votes in the pilot. With probability at least 1 - alpha over
    the fresh scores, either this abstains or that classifier answers `prediction` everywhere closer
    than `radius`. The two-class radius cannot be had: only one class was scored.

    Args:
        selection_counts: hard votes of the pilot.
        pilot_scores: histogram of the class's scores in the pilot.
        scores: histogram of its fresh scores.
        n: fresh scores drawn.
        alpha: failure probability.
        sigma: noise level.
    """
    candidate = int(np.argmax(selection_counts))
    miss = soft_miss(pilot_scores, scores, n=n, alpha=alpha)
    return _decision_of_miss(candidate, miss, sigma)


def binomial_p_value(top: int, second: int) -> float:
    """Two-sided p-value of a fair coin giving `top` against `second`, rounded up."""
    if top == second:
        return 1.0
    # P(Binomial(top + second, 1/2) >= top) = I_{1/2}(top, second + 1)
    return min(1.0, 2 * float(special.betainc(top, second + 1, 0.5)) * (1 + 1e-9))


def decide_prediction(
    counts: Sequence[int], *, alpha: float, n: int | None = None
) -> tuple[int, float]:
    """Cohen et al.'s PREDICT: the leading class, or ABSTAIN, and the p-value.

    The answer differs from the smoothed classifier's with probability at most alpha (Proposition 2
    of Cohen et al. 2019, by Hung and Fithian 2019): a two-sided binomial test that the two leading
    classes are equally likely, among the votes for either. Of n votes drawn, those that counted for
    no class are taken to be for the runner-up.
    """
    order = np.argsort(-np.asarray(counts), kind="stable")
    top, second = int(counts[order[0]]), int(counts[order[1]])
    p_value = binomial_p_value(top, second + (0 if n is None else n - sum(counts)))
    return (int(order[0]) if p_value <= alpha else ABSTAIN), p_value
