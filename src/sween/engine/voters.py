"""Panels: classifiers that vote on the same noisy inputs in one pass."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from sween.engine.exits import vote_with_exit
from sween.engine.forward import FixedShapeForward, check_row_independence, probe_batch
from sween.engine.prepare import Member, Preparation, explained
from sween.ensemble.early_exit import ExitPolicy
from sween.ensemble.weighted import WeightedEnsemble, add_weighted, check_weights
from sween.errors import BadInput
from sween.interleave import Steps, done


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

    @property
    def members(self) -> Sequence[Member]: ...

    def follow(self) -> None:
        """Take up modules that were exchanged since the last call."""
        ...

    @property
    def compacts(self) -> bool:
        """Whether later members see fewer inputs: then many at once fill forward passes better."""
        ...

    def vote(self, noisy: torch.Tensor) -> Steps[Ballot]: ...

    def probabilities(self, noisy: torch.Tensor) -> torch.Tensor:
        """What the last classifier's vote is the argmax of, (B, M) on the simplex."""
        ...


def check_panel(panel: Panel, image: torch.Tensor, sigma: float) -> None:
    """Prepare the members; refuse those that break the contract of a member.

    A member that was probed in its present state, on a batch of this shape, is not probed again.
    """
    panel.follow()
    shape = (panel.forward.rows, *image.shape)
    for member in panel.members:
        if not member.is_current(shape):
            member.refresh(probe_batch(image, panel.forward.rows, sigma))
        if not member.is_probed(shape):
            with explained(member.module, image.shape):
                check_row_independence(member, panel.forward, image, sigma)
            member.note_probed(shape)


def arithmetic_of(panel: Panel) -> str:
    """What the panel's members compute in, for records; known once they were checked.

    One name where all members have the same, else one a member, in their order.
    """
    names = [member.arithmetic for member in panel.members]
    return names[0] if len(set(names)) == 1 else ", ".join(names)


class ModelPanel:
    """One module on its own: the vote is the argmax of its output, the lowest class on a tie."""

    def __init__(
        self, model: nn.Module, *, name: str, forward: FixedShapeForward, preparation: Preparation
    ) -> None:
        self.members = [Member(model, preparation)]
        self.names: tuple[str, ...] = (name,)
        self.exits: tuple[str, ...] = ("none",)
        self.forward = forward

    def follow(self) -> None:
        """The module is fixed."""

    @property
    def compacts(self) -> bool:
        return False

    def probabilities(self, noisy: torch.Tensor) -> torch.Tensor:
        raise BadInput(
            "soft votes",
            expected="a WeightedEnsemble, whose outputs are probabilities",
            got=type(self.members[0].module).__name__,
            fix="wrap the model: sween.WeightedEnsemble([model])",
        )

    def vote(self, noisy: torch.Tensor) -> Steps[Ballot]:
        labels = self.forward(self.members[0], noisy).argmax(dim=1)
        return done(Ballot(labels[None], torch.ones_like(labels)[None]))


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to use an ensemble's members: weights, the ensemble's own when None, and an exit."""

    name: str
    weights: Sequence[float] | None
    policy: ExitPolicy


def name_with_exit(name: str, policy: ExitPolicy) -> str:
    """The name of an ensemble with another exit than the run's own."""
    return f"{name}+{policy.name}"


class EnsemblePanel:
    """A weighted ensemble with an early exit; on request its members and variants of it too.

    With those every member is evaluated on every input anyway, so an exit saves nothing in that
    pass; its votes and the evaluations it would need are still those of the exit. The order is
    members, other weightings, other exits, the ensemble itself.

    Args:
        ensemble: the members, and the weights of the last classifier of the panel.
        name: its name.
        forward: evaluates members.
        policy: early exit of the ensemble and of every other weighting.
        preparation: how members are made ready.
        member_names: of the members, where each is to vote on its own too.
        weightings: other weights of the same members, by name.
        exits: other exits of the ensemble.
    """

    def __init__(
        self,
        ensemble: WeightedEnsemble,
        *,
        name: str,
        forward: FixedShapeForward,
        policy: ExitPolicy,
        preparation: Preparation,
        member_names: Sequence[str] | None = None,
        weightings: Mapping[str, Sequence[float]] | None = None,
        exits: Sequence[ExitPolicy] = (),
    ) -> None:
        self.ensemble = ensemble
        self.preparation = preparation
        self.members = [Member(member, preparation) for member in ensemble.members]
        self.with_members = member_names is not None
        checked = {
            other: check_weights(weights, len(self.members), what=f"weighting {other}").tolist()
            for other, weights in (weightings or {}).items()
        }
        self.variants = [
            *(Variant(other, weights, policy) for other, weights in checked.items()),
            *(Variant(name_with_exit(name, other), None, other) for other in exits),
            Variant(name, None, policy),
        ]
        own = tuple(member_names or ())
        self.names: tuple[str, ...] = (*own, *(variant.name for variant in self.variants))
        if len(set(self.names)) < len(self.names):
            raise BadInput(
                "names of members, weightings and exits",
                expected="a different one for each",
                got=", ".join(self.names),
                fix="rename the double one",
            )
        self.exits: tuple[str, ...] = (
            *("none",) * len(own),
            *(variant.policy.describe() for variant in self.variants),
        )
        self.forward = forward
        self.policy = policy
        self._followed: tuple[int, list[float]] | None = None

    def follow(self) -> None:
        """Whoever exchanges a member of the ensemble exchanges who votes."""
        members, weights = len(self.ensemble.members), self.ensemble.weights.tolist()
        if (members, weights) != self._followed:
            check_weights(weights, members)
            self._followed = (members, weights)
        known = {id(member.module): member for member in self.members}
        self.members = [
            known.get(id(module)) or Member(module, self.preparation)
            for module in self.ensemble.members
        ]

    @property
    def compacts(self) -> bool:
        return self._alone and self.policy.name != "none"

    @property
    def _alone(self) -> bool:
        return not self.with_members and len(self.variants) == 1

    def vote(self, noisy: torch.Tensor) -> Steps[Ballot]:
        if self.compacts:
            votes = yield from vote_with_exit(
                lambda member, undecided: self._wanted(member, noisy, undecided),
                weights=self.ensemble.weights.tolist(),
                policy=self.policy,
            )
            return Ballot(votes.labels[None], votes.evaluations[None])
        everything = [self._probabilities(k, noisy) for k in range(len(self.members))]
        labels, evaluations = [], []
        if self.with_members:
            labels += [probabilities.argmax(dim=1) for probabilities in everything]
            evaluations += [torch.ones_like(own) for own in labels]
        for variant in self.variants:
            weights = variant.weights or self.ensemble.weights.tolist()
            votes = yield from vote_with_exit(
                lambda member, _: done(everything[member]), weights=weights, policy=variant.policy
            )
            labels.append(votes.labels)
            evaluations.append(votes.evaluations)
        return Ballot(torch.stack(labels), torch.stack(evaluations))

    def probabilities(self, noisy: torch.Tensor) -> torch.Tensor:
        weights = self.ensemble.weights.tolist()
        scores: torch.Tensor | None = None
        for member in self.ensemble.order:
            scores = add_weighted(scores, weights[member], self._probabilities(member, noisy))
        assert scores is not None  # there is at least one member
        return scores

    def _probabilities(self, member: int, noisy: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.forward(self.members[member], noisy).float(), dim=1)

    def _wanted(
        self, member: int, noisy: torch.Tensor, wanted: torch.Tensor | None
    ) -> Steps[torch.Tensor]:
        """Probabilities of one member, for the inputs where `wanted` is true, or for all."""
        if wanted is None:
            return self._probabilities(member, noisy)
        logits = yield from self.forward.where(self.members[member], noisy, wanted)
        return torch.softmax(logits.float(), dim=1)


def build_panel(
    model: nn.Module,
    *,
    name: str,
    forward: FixedShapeForward,
    policy: ExitPolicy,
    preparation: Preparation | None = None,
    member_names: Sequence[str] | None = None,
    weightings: Mapping[str, Sequence[float]] | None = None,
    exits: Sequence[ExitPolicy] = (),
) -> Panel:
    """The panel of an ensemble or of any other module."""
    preparation = preparation or Preparation()
    if isinstance(model, WeightedEnsemble):
        if member_names is not None and len(member_names) != len(model.members):
            raise BadInput(
                "member_names",
                expected=f"{len(model.members)} names, one a member",
                got=len(member_names),
                fix="name every member",
            )
        return EnsemblePanel(
            model,
            name=name,
            forward=forward,
            policy=policy,
            preparation=preparation,
            member_names=member_names,
            weightings=weightings,
            exits=exits,
        )
    if policy.name != "none" or member_names is not None or weightings or exits:
        raise BadInput(
            "exit, member_names and weightings",
            expected="a WeightedEnsemble",
            got=type(model).__name__,
            fix="wrap the models in sween.WeightedEnsemble",
        )
    return ModelPanel(model, name=name, forward=forward, preparation=preparation)
