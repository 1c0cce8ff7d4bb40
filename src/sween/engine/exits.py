"""Evaluates members one after the other until the exit policy stops each noisy input."""

import dataclasses
from collections.abc import Callable, Sequence

import torch

from sween.ensemble.early_exit import ExitPolicy, Partial
from sween.ensemble.weighted import add_weighted, evaluation_order
from sween.interleave import Steps

MemberEvaluation = Callable[[int, torch.Tensor | None], Steps[torch.Tensor]]
"""(member, undecided) -> that member's probabilities (B, M) on the rows where undecided (B,) is
true, or on all rows if it is None; other rows hold arbitrary finite numbers."""


@dataclasses.dataclass(frozen=True)
class ExitVotes:
    """Labels (B,) and how many members each row needed (B,)."""

    labels: torch.Tensor
    evaluations: torch.Tensor


def vote_with_exit(
    evaluate: MemberEvaluation, *, weights: Sequence[float], policy: ExitPolicy
) -> Steps[ExitVotes]:
    """The label of each row, evaluating members by descending weight until the policy stops it.

    This function never reads the number of remaining rows back from the device; `evaluate` may.

    Args:
        evaluate: returns a member's probabilities on the rows that are still undecided.
        weights: of the members, in the order of the members.
        policy: when to stop.
    """
    order = evaluation_order(weights)
    ordered = [weights[k] for k in order]
    probabilities = yield from evaluate(order[0], None)
    scores = add_weighted(None, weights[order[0]], probabilities)
    seen = [probabilities]
    stops = policy.rule.stops
    if stops is None:
        for member in order[1:]:
            probabilities = yield from evaluate(member, None)
            scores = add_weighted(scores, weights[member], probabilities)
        labels = scores.argmax(dim=1)
        return ExitVotes(labels, torch.full_like(labels, len(order)))
    labels = scores.argmax(dim=1)
    evaluations, undecided = torch.ones_like(labels), torch.ones_like(labels, dtype=torch.bool)
    for position, member in enumerate(order[1:], start=1):
        undecided = undecided & ~stops(Partial(seen, scores, labels, ordered), policy)
        probabilities = yield from evaluate(member, undecided)
        seen.append(probabilities)
        scores = add_weighted(scores, weights[member], probabilities)
        labels = torch.where(undecided, scores.argmax(dim=1), labels)
        evaluations = torch.where(undecided, position + 1, evaluations)
    return ExitVotes(labels, evaluations)
