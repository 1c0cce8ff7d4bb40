"""From two sets of votes to a certified prediction. No torch here."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import special

from sween.bounds.anytime import check_radii_to_decide, sequential_miss
from sween.bounds.binomial import check_probability, lower_bound
from sween.bounds.radius import (
    bound_of,
    radius_cohen,
    radius_of_miss,
    radius_two_class,
)
from sween.bounds.scores import soft_miss
from sween.errors import BadInput
from sween.records import ABSTAIN


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the votes prove: the fields of a certificate that can be re-derived from its counts.

    Example:
        See `decide`.
    """

    prediction: int
    radius: float
    radius_cohen: float
    radius_two_class: float | None
    candidate: int
    lower_bound: float


def _check_votes(
    votes: Sequence[int], others: Sequence[int] | None = None, drawn: int | None = None
) -> None:
    """Refuse what are no votes on two or more classes, or more of them than were drawn."""
    last = votes if others is None else others
    for counts in (votes, last):
        try:
            array = np.asarray(counts)
        except ValueError:  # rows of unequal length
            array = np.empty(0)
        if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2 or array.min() < 0:
            raise BadInput(
                "counts",
                expected="votes for each of two or more classes, none negative",
                got=repr(counts),
                fix="pass whole numbers",
            )
    if len(votes) != len(last):
        raise BadInput(
            "counts",
            expected=f"{len(votes)} classes, as in the selection",
            got=len(last),
            fix="count both for the same classes",
        )
    if drawn is not None and drawn < (total := int(np.sum(last))):
        raise BadInput(
            "n", expected=f"at least {total}, the votes counted", got=drawn, fix="pass all votes"
        )


def decide(
    selection_counts: Sequence[int],
    estimation_counts: Sequence[int],
    *,
    alpha: float,
    sigma: float,
    bound: str = "cohen",
    n: int | None = None,
) -> Decision:
    """Cohen et al.'s CERTIFY, with the given bound.

    The class is chosen by the selection votes alone (the lowest class on a tie); the bounds use the
    estimation votes alone. The two must be independent draws: sharing votes would let the failure
    probability exceed alpha. Then with probability at least 1 - alpha over the estimation votes,
    either this abstains or no l2 perturbation smaller than `radius` changes the smoothed
    classifier's prediction (Theorem 1 of the paper; see `radius_cohen` and `radius_two_class`).
    Without estimation votes, if a budget spends none on an image, it abstains.

    Of the n votes drawn, those that counted for no class are treated conservatively: not for the
    predicted class, and all for the runner-up. n is the sum of the counts when None.

    Example:
        >>> from sween.bounds import decide
        >>> decision = decide([2, 98, 0], [8, 990, 2], alpha=0.001, sigma=0.5)
        >>> decision.prediction, round(decision.radius, 4)
        (1, 0.989)
        >>> decide([45, 55], [470, 530], alpha=0.001, sigma=0.5).prediction
        -1
    """
    _check_votes(selection_counts, estimation_counts, n)
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
    """`decide` for many images at little more than the cost of one."""
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
    """Votes for the class, and the most votes for any other class."""
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
    """The decision of a sequence that stopped as soon as every radius was certified or given up.

    The class is chosen by the selection votes alone. The bound on its probability is valid at all
    looks simultaneously with probability at least 1 - alpha (see `sequential_miss`), so it is valid
    to stop at any of them, for any reason, and to decide all radii without a correction. False for
    a radius means not certified, which claims nothing. The two-class radius is not available.

    Args:
        selection_counts: of the pilot.
        estimation_counts: at the look at which sampling stopped.
        radii: to decide.
        largest: number of votes at which the sequence would have ended.
        alpha: failure probability of all decisions together.
        sigma: noise level.
        n: votes drawn at that look, the sum of the counts when None; see `decide`.

    Example:
        >>> from sween.bounds import decide_radii
        >>> decision, certified = decide_radii(
        ...     [2, 98], [6, 594], [0.25, 1.0], largest=100_000, alpha=0.001, sigma=0.5
        ... )
        >>> decision.prediction, certified
        (1, {'0.25': True, '1.0': False})
    """
    _check_votes(selection_counts, estimation_counts, n)
    n = int(np.sum(estimation_counts)) if n is None else n
    (answer,) = decide_radii_each(
        [selection_counts],
        [estimation_counts],
        check_radii_to_decide(radii),
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
    """`decide_radii` for many images at little more than the cost of one."""
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
    """The decision from a bound on the probability of all other classes, by Cohen's radius."""
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
    """The decision from soft votes: the classifier is argmax_k E f_k; see `scores.py`.

    The class is the one with the most hard votes in the pilot. With probability at least 1 - alpha
    over the fresh scores, either this abstains or no l2 perturbation smaller than `radius` changes
    that classifier's prediction. The two-class radius is not available: only one class was scored.

    Args:
        selection_counts: hard votes of the pilot.
        pilot_scores: histogram of the class's scores in the pilot.
        scores: histogram of the class's fresh scores.
        n: fresh scores drawn.
        alpha: failure probability.
        sigma: noise level.

    Example:
        >>> from sween.bounds import decide_soft
        >>> pilot = [500, 5, 1000, 95]  # 5 scores of 500/1024 and 95 of 1000/1024
        >>> scores = [500, 50, 1000, 950]
        >>> decision = decide_soft([3, 97], pilot, scores, n=1000, alpha=0.001, sigma=0.5)
        >>> decision.prediction, round(decision.radius, 4)
        (1, 0.7643)
    """
    _check_votes(selection_counts)
    candidate = int(np.argmax(selection_counts))
    miss = soft_miss(pilot_scores, scores, n=n, alpha=alpha)
    return _decision_of_miss(candidate, miss, sigma)


def binomial_p_value(top: int, second: int) -> float:
    """Two-sided p-value of `top` against `second` votes under a fair coin, rounded up.

    Example:
        >>> from sween.bounds import binomial_p_value
        >>> round(binomial_p_value(8, 2), 4)
        0.1094
    """
    if top == second:
        return 1.0
    if min(top, second) < 0:
        raise BadInput("votes", expected="at least 0", got=min(top, second), fix="count again")
    # P(Binomial(top + second, 1/2) >= top) = I_{1/2}(top, second + 1)
    return min(1.0, 2 * float(special.betainc(top, second + 1, 0.5)) * (1 + 1e-9))


def decide_prediction(
    counts: Sequence[int], *, alpha: float, n: int | None = None
) -> tuple[int, float]:
    """Cohen et al.'s PREDICT: the leading class or ABSTAIN, and the p-value.

    A class that differs from the smoothed classifier's is returned with probability at most alpha
    (Proposition 2 of Cohen et al. 2019, by Hung and Fithian 2019): a two-sided binomial test that
    the two leading classes are equally likely, among the votes for either. Of the n votes drawn,
    those that counted for no class are given to the runner-up.

    Example:
        >>> from sween.bounds import decide_prediction
        >>> prediction, p_value = decide_prediction([3, 95, 2], alpha=0.001)
        >>> prediction, p_value < 1e-20
        (1, True)
        >>> decide_prediction([45, 55, 0], alpha=0.001)[0]
        -1
    """
    _check_votes(counts, drawn=n)
    check_probability("alpha", alpha)
    order = np.argsort(-np.asarray(counts), kind="stable")
    top, second = int(counts[order[0]]), int(counts[order[1]])
    p_value = binomial_p_value(top, second + (0 if n is None else n - sum(counts)))
    return (int(order[0]) if p_value <= alpha else ABSTAIN), p_value
