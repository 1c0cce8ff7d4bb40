"""Early exit over members, decided separately for each noisy input.

The classifier with an exit is itself a deterministic function of one noisy input, so a certificate
for it is sound, provided that the classifier that is deployed uses the same exit. An exit decided
over a batch would not be such a function.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from scipy import special

from sween.arguments import real_number
from sween.errors import BadInput, UnknownName, refuse_duplicates

EXACT_MARGIN = 1e-6
"""The smallest safety margin of an exact exit; see `exact_margin`."""


@dataclasses.dataclass(frozen=True)
class Partial:
    """What a rule sees after some of the members were evaluated on a batch of B noisy inputs.

    Attributes:
        seen: probabilities (B, M) of each member evaluated so far.
        scores: their weighted sum.
        leaders: (B,) the class with the largest score.
        weights: of all members, in descending order, in which they are evaluated.
    """

    seen: Sequence[torch.Tensor]
    scores: torch.Tensor
    leaders: torch.Tensor
    weights: Sequence[float]


@dataclasses.dataclass(frozen=True)
class ExitRule:
    """A rule for stopping early.

    Attributes:
        stops: which rows (B,) stop now, each decided by its own noisy input alone; None for a rule
            that never stops.
        fewest_members: from all weights to the number of members that it evaluates at least.
        exact: whether the answer is always that of the full ensemble.
        parameters: fields of `ExitPolicy` that it reads, for records.
    """

    stops: Callable[[Partial, "ExitPolicy"], torch.Tensor] | None
    fewest_members: Callable[[Sequence[float]], int]
    exact: bool = False
    parameters: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExitPolicy:
    """When to stop evaluating members, decided for each noisy input by itself.

    Attributes:
        name: `none`: never. `paper`: by Algorithm 1 of the paper. `exact`: as soon as the remaining
            members cannot change the answer, which therefore always equals the full ensemble's:
            with partial scores S and remaining weight R, no class can overtake the leader when
            top1(S) - top2(S) > R, since one member changes a score by at most its weight. The
            scores are float32 sums; `exact_margin` bounds what their rounding adds to R. `mixed`:
            when the leader's weighted mean probability among the members so far is above
            `threshold`, or when top1(S) - top2(S) exceeds `share` * R. The answers of `paper` and
            `mixed` may differ from the full ensemble's; what is certified is the classifier with
            the exit.
        threshold: T of `paper` and `mixed`.
        alpha: significance level of `paper`.
        share: of `mixed`; with 1 that part is `exact`.

    Example:
        >>> import sween, torch
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> smoothed = sween.SmoothedClassifier(
        ...     ensemble, sigma=0.5, num_classes=10, exit=sween.ExitPolicy("exact")
        ... )
        >>> certificate = smoothed.certify_one(torch.zeros(1, 8, 8), n=1000)
        >>> certificate.member_evaluations < 3 * certificate.samples
        True
    """

    name: str = "none"
    threshold: float = 0.999
    alpha: float = 0.05
    share: float = 0.7

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in EXITS:
            raise UnknownName("exit", self.name, tuple(EXITS))
        for name in ("threshold", "alpha", "share"):
            value = real_number(f"exit {name}", getattr(self, name))
            if not (0 < value < 1 or (name == "share" and value == 1)):
                raise BadInput(
                    f"exit {name}: expected a number strictly between 0 and 1, got {value}; the "
                    "authors use threshold .999 and alpha .05"
                )

    @property
    def rule(self) -> ExitRule:
        return EXITS[self.name]

    def describe(self) -> str:
        """The policy as one string for records.

        Example:
            >>> import sween
            >>> sween.ExitPolicy("mixed", threshold=0.99).describe()
            'mixed(threshold=0.99,share=0.7)'
        """
        values = [f"{name}={getattr(self, name)}" for name in self.rule.parameters]
        return f"{self.name}({','.join(values)})" if values else self.name


def names_with_exits(name: str, exits: Sequence[ExitPolicy]) -> list[str]:
    """Names of an ensemble with other exits; with their parameters where the exit's name is not
    enough to tell them apart."""
    rules = [policy.name for policy in exits]
    return [
        f"{name}+{rule if rules.count(rule) == 1 else policy.describe()}"
        for rule, policy in zip(rules, exits, strict=True)
    ]


def refuse_same_exits(policies: Sequence[ExitPolicy]) -> None:
    """Refuse exits to certify together that are not all different."""
    refuse_duplicates(
        "exits",
        [policy.describe() for policy in policies],
        expected="a different exit each",
        fix="leave it out",
    )


def as_exit(exit: object) -> ExitPolicy:
    """A policy, or that of a name with or without parameters; refuses anything else."""
    if isinstance(exit, ExitPolicy):
        return exit
    if not isinstance(exit, str):
        raise UnknownName("exit", exit, tuple(EXITS))
    return read_exit(exit)


def read_exit(text: str, **given: float) -> ExitPolicy:
    """The policy of a name, which may have parameters as in `mixed(threshold=0.99,share=0.7)`.

    Args:
        text: name and parameters.
        given: parameters for a name without any.
    """
    name, opened, inside = text.partition("(")
    if not opened:
        return ExitPolicy(name, **given)
    own = EXITS[name].parameters if name in EXITS else ()
    try:
        pairs = [pair.split("=") for pair in inside.removesuffix(")").split(",")]
        values = {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        values = {"": math.nan}
    if not inside.endswith(")") or not {*values} <= {*own}:
        raise BadInput(
            "exit",
            expected=f"{name}({','.join(f'{key}=NUMBER' for key in own)})" if own else "a name",
            got=repr(text),
            fix=f"one of {', '.join(EXITS)}",
        )
    return ExitPolicy(name, **values)


def parse_exit(text: str) -> ExitPolicy:
    """The inverse of `ExitPolicy.describe`; refuse any text that it would not write."""
    policy = read_exit(text)
    if policy.describe() != text:
        raise BadInput(
            f"exit: expected {policy.describe()}, as records write it, got {text!r}; restore the "
            "record from its source"
        )
    return policy


def exact_margin(left: int) -> float:
    """An upper bound on what rounding can add to the remaining weight R of `left` members.

    Let u = 2**-24. Scores only grow, and rounding is monotone, so the leader's computed score never
    decreases. Another class with score s gains at most fl(w) <= w (1 + u) from each member, a
    probability being at most 1 + 4u, and each of the `left` sums rounds up by a factor of at most
    1 + u: it ends at or below (s + R) (1 + u)^(left + 6). If s + R is below the leader's score,
    itself at most 1 plus a rounding error, that is s + R + (left + 7) u. The float32 difference of
    the scores and the float32 threshold it is compared with are off by u each. Hence (left + 10) u
    suffices, the last u covering all second-order terms, for up to thousands of members.
    EXACT_MARGIN is larger for up to six of them.
    """
    return max(EXACT_MARGIN, (left + 10) * 2.0**-24)


def _exact_stops(partial: Partial, _: ExitPolicy) -> torch.Tensor:
    top = partial.scores.topk(2, dim=1).values
    remaining = partial.weights[len(partial.seen) :]
    return top[:, 0] - top[:, 1] > sum(remaining) + exact_margin(len(remaining))


def _mixed_stops(partial: Partial, policy: ExitPolicy) -> torch.Tensor:
    top = partial.scores.topk(2, dim=1).values
    held, left = (partial.weights[: len(partial.seen)], partial.weights[len(partial.seen) :])
    margin = policy.share * sum(left) + exact_margin(len(left))
    return (top[:, 0] > policy.threshold * sum(held)) | (top[:, 0] - top[:, 1] > margin)


def _fewest_with_half_the_weight(weights: Sequence[float]) -> int:
    """Until they hold half of the weight, the remaining members could change any answer."""
    held = 0.0
    for number, weight in enumerate(sorted(weights, reverse=True), start=1):
        held += weight
        if held > 0.5 - EXACT_MARGIN:
            return number
    return len(weights)


def _paper_stops(partial: Partial, policy: ExitPolicy) -> torch.Tensor:
    """Line 9 of Algorithm 1 after i < K members."""
    weights = partial.weights[: len(partial.seen)]
    total, leaders = sum(weights), partial.leaders[:, None]
    leading = partial.scores.double().gather(1, leaders)[:, 0] / total
    if len(weights) == 1:
        return leading > policy.threshold
    spread = torch.zeros_like(leading)
    for weight, probabilities in zip(weights, partial.seen, strict=True):
        own = probabilities.double().gather(1, leaders)[:, 0]
        spread += weight * (own - leading) ** 2
    quantile = float(special.ndtri(1 - policy.alpha / 2))
    root_of_squares = sum(weight**2 for weight in weights) ** 0.5
    bar = 0.5 + quantile * root_of_squares / total * (spread / total).sqrt()
    return torch.gt(leading, bar)


EXITS = {
    "none": ExitRule(None, fewest_members=len, exact=True),
    "paper": ExitRule(_paper_stops, fewest_members=lambda _: 1, parameters=("threshold", "alpha")),
    "exact": ExitRule(_exact_stops, fewest_members=_fewest_with_half_the_weight, exact=True),
    "mixed": ExitRule(_mixed_stops, fewest_members=lambda _: 1, parameters=("threshold", "share")),
}
"""All rules, by name."""
