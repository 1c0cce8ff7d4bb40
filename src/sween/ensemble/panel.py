"""Panels: classifiers that vote on the same noisy inputs in one pass."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from sween.ensemble.early_exit import ExitPolicy, ExitVotes, vote_with_exit
from sween.ensemble.forward import FixedShapeForward, check_row_independence
from sween.ensemble.weighted import WeightedEnsemble
from sween.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Ballot:
    """Votes of every classifier of a panel: labels (V, B) and member evaluations (V, B)."""

    labels: torch.Tensor
    evaluations: torch.Tensor


class Panel(Protocol):
    """What the vote engine needs: named classifiers that vote on noisy inputs."""

    names: tuple[str, ...]
    exits: tuple[str, ...]
    forward: FixedShapeForward

    def vote(self, noisy: torch.Tensor) -> Ballot: ...

    def check(self, image: torch.Tensor, sigma: float) -> None:
        """Refuse modules that break the contract of a member."""
        ...


class ModelPanel:
    """One module on its own: the vote is the argmax of its output, the lowest class on a tie."""

    def __init__(self, model: nn.Module, *, name: str, forward: FixedShapeForward) -> None:
        self.model = model
        self.names: tuple[str, ...] = (name,)
        self.exits: tuple[str, ...] = ("none",)
        self.forward = forward

    def vote(self, noisy: torch.Tensor) -> Ballot:
        labels = self.forward(self.model, noisy).argmax(dim=1)
        return Ballot(labels[None], torch.ones_like(labels)[None])

    def check(self, image: torch.Tensor, sigma: float) -> None:
        check_row_independence(self.model, self.forward, image, sigma)


class EnsemblePanel:
    """A weighted ensemble, with an early exit, and on request each of its members beside it.

    With `members` every member is evaluated on every input anyway, so an exit saves nothing in that
    pass; its votes and the evaluations it would need are still those of the exit.
    """

    def __init__(
        self,
        ensemble: WeightedEnsemble,
        *,
        name: str,
        forward: FixedShapeForward,
        policy: ExitPolicy,
        member_names: Sequence[str] | None = None,
    ) -> None:
        self.ensemble = ensemble
        self.with_members = member_names is not None
        self.names: tuple[str, ...] = (*(member_names or ()), name)
        self.exits: tuple[str, ...] = ("none",) * len(member_names or ()) + (policy.describe(),)
        self.forward = forward
        self.policy = policy

    def vote(self, noisy: torch.Tensor) -> Ballot:
        if not self.with_members:
            votes = self._vote_with(noisy, None)
            return Ballot(votes.labels[None], votes.evaluations[None])
        everything = [self._probabilities(k, noisy) for k in range(len(self.ensemble.members))]
        own = torch.stack([probabilities.argmax(dim=1) for probabilities in everything])
        votes = self._vote_with(noisy, everything)
        return Ballot(
            torch.cat([own, votes.labels[None]]),
            torch.cat([torch.ones_like(own), votes.evaluations[None]]),
        )

    def _vote_with(self, noisy: torch.Tensor, known: list[torch.Tensor] | None) -> ExitVotes:
        def evaluate(member: int, rows: torch.Tensor) -> torch.Tensor:
            if known is not None:
                return known[member][rows]
            return self._probabilities(member, noisy[rows])

        return vote_with_exit(
            evaluate,
            rows=len(noisy),
            weights=self.ensemble.weights.tolist(),
            policy=self.policy,
            device=noisy.device,
        )

    def _probabilities(self, member: int, noisy: torch.Tensor) -> torch.Tensor:
        logits = self.forward(self.ensemble.members[member], noisy)
        return torch.softmax(logits.float(), dim=1)

    def check(self, image: torch.Tensor, sigma: float) -> None:
        for member in self.ensemble.members:
            check_row_independence(member, self.forward, image, sigma)


def build_panel(
    model: nn.Module,
    *,
    name: str,
    forward: FixedShapeForward,
    policy: ExitPolicy,
    member_names: Sequence[str] | None = None,
) -> Panel:
    """The panel of an ensemble or of any other module."""
    if isinstance(model, WeightedEnsemble):
        if member_names is not None and len(member_names) != len(model.members):
            raise BadInput(
                "member_names",
                expected=f"{len(model.members)} names, one a member",
                got=len(member_names),
                fix="name every member",
            )
        return EnsemblePanel(
            model, name=name, forward=forward, policy=policy, member_names=member_names
        )
    if policy.name != "none" or member_names is not None:
        raise BadInput(
            "exit and member_names",
            expected="a WeightedEnsemble",
            got=type(model).__name__,
            fix="wrap the models in sween.WeightedEnsemble",
        )
    return ModelPanel(model, name=name, forward=forward)
