"""Voters: classifiers built from the same members that vote on the same noise in one pass."""

import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from sween.engine.exits import vote_with_exit
from sween.engine.forward import (
    FixedShapeForward,
    check_row_independence,
    probe_batch,
    probe_passes,
)
from sween.engine.member import Member
from sween.engine.model_errors import explain_model_errors
from sween.engine.preparation import Preparation
from sween.engine.tracing import has_own_hooks
from sween.ensemble.early_exit import ExitPolicy, names_with_exits, refuse_same_exits
from sween.ensemble.weighted import WeightedEnsemble, add_weighted, check_weights, evaluation_order
from sween.errors import BadInput, ContractError, describe_type, warn_contract
from sween.interleave import Steps, done
from sween.progress import SECONDS_BETWEEN_LINES, format_rate, format_seconds

_LOG = logging.getLogger(__name__)

SECONDS_BEFORE_A_LINE = 2.0
"""Of a probe, before its rate is shown."""

QUICK_NUMBERS = 3 * 64 * 64
"""Of values in an image: a few forward passes of larger ones take up to a minute on a CPU."""


@dataclasses.dataclass(frozen=True)
class Ballot:
    """Votes of every voter: labels (V, B) and member evaluations (V, B)."""

    labels: torch.Tensor
    evaluations: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to combine the members: weights (None for the ensemble's own) and an early exit."""

    name: str
    weights: Sequence[float] | None
    policy: ExitPolicy


class Voters:
    """A model with an early exit and, optionally, its members and variants of it.

    A module that is not a `WeightedEnsemble` votes by the argmax of its outputs. Ties go to the
    lowest class. With members or variants, every member is evaluated on every input anyway, so an
    exit saves nothing in that pass; its votes, and the evaluations it would have needed, are still
    those of the exit.

    Args:
        model: a `WeightedEnsemble`, or any other module that returns logits or probabilities.
        name: of the model.
        forward: evaluates members.
        policy: early exit of the model and of every other weighting.
        preparation: how members are prepared.
        member_names: names of the members, if each of them should also vote on its own.
        weightings: other weights for the same members, by name.
        exits: other exits of the ensemble.

    Example:
        See `VoteEngine`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        forward: FixedShapeForward,
        policy: ExitPolicy | None = None,
        preparation: Preparation | None = None,
        member_names: Sequence[str] | None = None,
        weightings: Mapping[str, Sequence[float]] | None = None,
        exits: Sequence[ExitPolicy] = (),
    ) -> None:
        self.model, self.name, self.forward = model, name, forward
        self.policy, self.preparation = policy or ExitPolicy(), preparation or Preparation()
        self.members = [Member(member, self.preparation) for member in self._modules()]
        self.with_members = member_names is not None
        if not isinstance(model, WeightedEnsemble) and (
            self.policy.name != "none" or self.with_members or weightings or exits
        ):
            raise BadInput(
                "exit, member_names and weightings",
                expected="a WeightedEnsemble",
                got=describe_type(model),
                fix="wrap the models in sween.WeightedEnsemble",
            )
        refuse_same_exits([self.policy, *exits])
        own = tuple(member_names or ())
        if self.with_members and len(own) != len(self.members):
            raise BadInput(
                "member_names",
                expected=f"{len(self.members)} names, one per member",
                got=len(own),
                fix="name every member",
            )
        checked = {
            other: check_weights(weights, len(self.members), what=f"weighting {other}").tolist()
            for other, weights in (weightings or {}).items()
        }
        self.variants = [
            *(Variant(other, weights, self.policy) for other, weights in checked.items()),
            *map(Variant, names_with_exits(name, exits), itertools.repeat(None), exits),
            Variant(name, None, self.policy),
        ]
        self.names: tuple[str, ...] = (*own, *(variant.name for variant in self.variants))
        if len(set(self.names)) < len(self.names):
            raise BadInput(
                "names of members, weightings and exits",
                expected="distinct names",
                got=", ".join(self.names),
                fix="rename the duplicate",
            )
        self.exits = dict.fromkeys(own, "none") | {
            variant.name: variant.policy.describe() for variant in self.variants
        }
        self._followed: tuple[int, list[float]] | None = None

    def _modules(self) -> list[nn.Module]:
        model = self.model
        if not isinstance(model, WeightedEnsemble):
            return [model]
        own_code = any(
            getattr(type(model), name) is not getattr(WeightedEnsemble, name)
            for name in ("forward", "__call__", "_wrapped_call_impl", "_call_impl")
        )
        if has_own_hooks(model) or own_code:
            # Its members are evaluated one by one, so such code would never run.
            raise ContractError(
                self.name,
                expected="a WeightedEnsemble whose members and weights say all of what it computes",
                got="one with forward hooks, or a forward or __call__ of its own",
                fix="move them into a member, or wrap the ensemble in a module of your own",
            )
        return list(model.members)

    def _weights(self) -> list[float]:
        model = self.model
        return model.weights.tolist() if isinstance(model, WeightedEnsemble) else [1.0]

    def prepare(self, image: torch.Tensor, sigma: float) -> None:
        """Prepare the members for noisy copies of such an image.

        Members replaced since the last call are prepared too. A member that already passed the
        batch-mixing check in its current state and shape is not checked again.

        Raises:
            ContractError: a member is not a deterministic function of each single input.
        """
        self._follow()
        shape = (self.forward.rows, *image.shape)
        for place, member in enumerate(self.members, start=1):
            if not member.is_current(shape):
                self._say(place, image)
                member.refresh(probe_batch(image, self.forward.rows, sigma))
            if member.one_at_a_time:
                member.note_probed(shape, by_place=False)  # it has no batch to mix
            if not member.is_probed(shape):
                with (
                    self._passes_shown(place, image),
                    explain_model_errors(member.module, image.shape),
                ):
                    probed = check_row_independence(
                        member,
                        self.forward,
                        image,
                        sigma,
                        elsewhere_allowed=self.preparation.change_with_place(image.device),
                    )
                member.note_probed(shape, by_place=probed.by_place)
                if probed.probabilities and isinstance(self.model, WeightedEnsemble):
                    warn_contract(
                        f"{self.name}, network {place}",
                        expected="logits, of which a softmax is taken",
                        got="numbers that sum to 1 for every noisy image, like probabilities",
                        fix="leave out its last softmax, or return their logarithms",
                    )

    def _say(self, place: int, image: torch.Tensor, more: str = "") -> None:
        """Say which network is prepared, where that takes longer than a moment."""
        is_quick = image.numel() <= QUICK_NUMBERS
        if is_quick and self.preparation.compile_mode(image.device) is None:
            return  # a few forward passes
        which = f", network {place} of {len(self.members)}" if len(self.members) > 1 else ""
        size = "x".join(map(str, image.shape[1:]))
        _LOG.info("preparing %s%s (%s px) on %s%s", self.name, which, size, image.device, more)

    @contextlib.contextmanager
    def _passes_shown(self, place: int, image: torch.Tensor) -> Iterator[None]:
        """Say how fast the passes of a probe are; on a CPU those of photos take a minute."""
        if image.device.type != "cpu":
            yield
            return
        began, finished, total = time.monotonic(), 0, probe_passes(self.forward.rows)
        due = began + SECONDS_BEFORE_A_LINE

        def one_done() -> None:
            nonlocal finished, due
            finished, now = finished + 1, time.monotonic()
            if now >= due and finished < total:
                due = now + SECONDS_BETWEEN_LINES
                rate = format_rate(finished * self.forward.rows / (now - began))
                left = format_seconds((total - finished) * (now - began) / finished)
                passes = f"{finished}/{total} passes of {self.forward.rows} images"
                self._say(place, image, f": {passes}, {rate}, {left} left")

        with self.forward.reporting(one_done):
            yield

    def is_current(self, image_shape: Sequence[int]) -> bool:
        """Whether members, their state and the weights are as they were when prepared."""
        same = [member.module for member in self.members] == self._modules()
        shape = (self.forward.rows, *image_shape)
        return (
            same
            and (len(self.members), self._weights()) == self._followed
            and all(member.is_current(shape) for member in self.members)
        )

    def _follow(self) -> None:
        modules, weights = self._modules(), self._weights()
        if (len(modules), weights) != self._followed:
            check_weights(weights, len(modules))
            self._followed = (len(modules), weights)
        known = {id(member.module): member for member in self.members}
        self.members = [
            known.get(id(module)) or Member(module, self.preparation) for module in modules
        ]

    def forget(self) -> None:
        """Drop the prepared members and their memory."""
        for member in self.members:
            member.forget()

    @property
    def arithmetic(self) -> str:
        """The members' arithmetic, for records; known once they are prepared.

        One name if all members have the same, else one per member, in order.
        """
        names = [member.arithmetic for member in self.members]
        return names[0] if len(set(names)) == 1 else ", ".join(names)

    @property
    def compacts(self) -> bool:
        """Whether later members see fewer inputs, so that larger batches fill passes better."""
        return len(self.names) == 1 and self.policy.rule.stops is not None

    def vote(self, noisy: torch.Tensor) -> Steps[Ballot]:
        """The votes of all voters, in the order of `names`."""
        if self.compacts:
            votes = yield from vote_with_exit(
                lambda member, undecided: self._wanted(member, noisy, undecided),
                weights=self._weights(),
                policy=self.policy,
            )
            return Ballot(votes.labels[None], votes.evaluations[None])
        outputs = [self._outputs(k, noisy) for k in range(len(self.members))]
        labels, evaluations = [], []
        if self.with_members:
            labels += [own.argmax(dim=1) for own in outputs]
            evaluations += [torch.ones_like(own) for own in labels]
        for variant in self.variants:
            votes = yield from vote_with_exit(
                lambda member, _: done(outputs[member]),
                weights=variant.weights or self._weights(),
                policy=variant.policy,
            )
            labels.append(votes.labels)
            evaluations.append(votes.evaluations)
        return Ballot(torch.stack(labels), torch.stack(evaluations))

    def probabilities(self, noisy: torch.Tensor) -> torch.Tensor:
        """The ensemble's probabilities (B, M), of which its vote is the argmax."""
        if not isinstance(self.model, WeightedEnsemble):
            raise BadInput(
                "soft votes",
                expected="a WeightedEnsemble, whose outputs are probabilities",
                got=describe_type(self.model),
                fix="wrap the model: sween.WeightedEnsemble([model])",
            )
        weights = self._weights()
        scores: torch.Tensor | None = None
        for member in evaluation_order(weights):
            scores = add_weighted(scores, weights[member], self._outputs(member, noisy))
        assert scores is not None  # there is at least one member
        return scores

    def _outputs(self, member: int, noisy: torch.Tensor) -> torch.Tensor:
        """A member's probabilities; the raw outputs if the model is not an ensemble."""
        outputs = self.forward(self.members[member], noisy)
        if not isinstance(self.model, WeightedEnsemble):
            return outputs
        return torch.softmax(outputs.float(), dim=1)

    def _wanted(
        self, member: int, noisy: torch.Tensor, wanted: torch.Tensor | None
    ) -> Steps[torch.Tensor]:
        """Probabilities of one member on the inputs where `wanted` is true, or on all if None."""
        if wanted is None:
            return self._outputs(member, noisy)
        logits = yield from self.forward.where(self.members[member], noisy, wanted)
        return torch.softmax(logits.float(), dim=1)
