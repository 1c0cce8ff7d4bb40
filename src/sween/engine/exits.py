"""Evaluating members one after the other, until the exit policy stops each noisy input."""

import dataclasses
from collections.abc import Callable, Sequence

import torch

from sween.ensemble.early_exit import ExitPolicy, exit_order, stops
from sween.ensemble.weighted import add_weighted
from sween.interleave import Steps

MemberEvaluation = Callable[[int, torch.Tensor | None], Steps[torch.Tensor]]
"""(member, undecided) -> probabilities (B, M) of that member, at the rows where undecided (B,) is
true, or at all; elsewhere any finite numbers."""


@dataclasses.dataclass(frozen=True)
class ExitVotes:
    """Labels (B,) and how many members each row needed (B,)."""

    labels: torch.Tensor
    evaluations: torch.Tensor


def vote_with_exit(
    evaluate: MemberEvaluation, *, weights: Sequence[float], policy: ExitPolicy
) -> Steps[ExitVotes]:
    """The label of each row, evaluating members by descending weight until the policy stops it.

    Nothing here asks the device how many rows are left; an evaluation may.

    Args:
        evaluate: gives a member's probabilities at the rows still undecided.
        weights: of the members, in the members' own order.
        policy: when to stop.
    """
    order = exit_order(weights)
    ordered = [weights[k] for k in order]
    probabilities = yield from evaluate(order[0], None)
    scores = add_weighted(None, weights[order[0]], probabilities)
    seen = [probabilities]
    if policy.name == "none":
        for member in order[1:]:
            probabilities = yield from evaluate(member, None)
            scores = add_weighted(scores, weights[member], probabilities)
        labels = scores.argmax(dim=1)
        return ExitVotes(labels, torch.full_like(labels, len(order)))
    labels = scores.argmax(dim=1)
    evaluations, undecided = torch.ones_like(labels), torch.ones_like(labels, dtype=torch.bool)
    for position, member in enumerate(order[1:], start=1):
        undecided = undecided & ~stops(seen, scores, ordered, labels, policy)
        probabilities = yield from evaluate(member, undecided)
        seen.append(probabilities)
        scores = add_weighted(scores, weights[member], probabilities)
        labels = torch.where(undecided, scores.argmax(dim=1), labels)
        evaluations = torch.where(undecided, position + 1, evaluations)
    return ExitVotes(labels, evaluations)
