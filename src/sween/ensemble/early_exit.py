"""Early exit over members, decided separately for each noisy input.

The classifier with an exit is itself a deterministic function of one noisy input, so a certificate
for it is sound, provided that the classifier that is deployed uses the same exit. An exit decided
over a batch would not be such a function.
"""

import dataclasses
import re
from collections.abc import Sequence

import torch
from scipy import special

from sween.errors import BadInput, UnknownName

EXITS = ("none", "paper", "exact")

EXACT_MARGIN = 1e-6
"""The smallest safety margin of an exact exit; see `exact_margin`."""


@dataclasses.dataclass(frozen=True)
class ExitPolicy:
    """When to stop evaluating members.

    none:  never.
    paper: Algorithm 1 of the paper with threshold T and significance level alpha. Its answer may
           differ from the full ensemble's; what is certified is the classifier with the exit.
    exact: as soon as the remaining members cannot change the answer, which therefore always equals
           the full ensemble's: with partial scores S and remaining weight R, no class can overtake
           the leader when top1(S) - top2(S) > R, since one member changes a score by at most its
           weight. The scores are float32 sums; `exact_margin` bounds what their rounding adds to R.
    """

    name: str = "none"
    threshold: float = 0.999
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if self.name not in EXITS:
            raise UnknownName("exit", self.name, EXITS)
        for name in ("threshold", "alpha"):
            if not 0 < getattr(self, name) < 1:
                raise BadInput(
                    f"exit {name}",
                    expected="a number strictly between 0 and 1",
                    got=getattr(self, name),
                    fix="the authors use threshold .999 and alpha .05",
                )

    def describe(self) -> str:
        """The policy as one string for records."""
        if self.name == "paper":
            return f"paper(threshold={self.threshold},alpha={self.alpha})"
        return self.name


def parse_exit(text: str) -> ExitPolicy:
    """The inverse of `ExitPolicy.describe`; refuse any text that it would not write."""
    parts = re.fullmatch(r"paper\(threshold=([0-9.e-]+),alpha=([0-9.e-]+)\)", text)
    try:
        policy = ExitPolicy("paper", *map(float, parts.groups())) if parts else ExitPolicy(text)
    except ValueError:
        policy = ExitPolicy()
    if policy.describe() != text:
        raise BadInput(
            "exit",
            expected="none, exact or paper(threshold=T,alpha=A), as written in records",
            got=repr(text),
            fix="restore the record from its source",
        )
    return policy


def exit_order(weights: Sequence[float]) -> list[int]:
    """Members by descending weight; equal weights keep their order."""
    return sorted(range(len(weights)), key=lambda k: (-weights[k], k))


def stops(
    seen: list[torch.Tensor],
    scores: torch.Tensor,
    weights: Sequence[float],
    leaders: torch.Tensor,
    policy: ExitPolicy,
) -> torch.Tensor:
    """Which rows stop after len(seen) members; weights in descending order."""
    if policy.name == "paper":
        return _paper_stops(seen, scores, weights, leaders, policy)
    return _exact_stops(scores, weights[len(seen) :])


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


def _exact_stops(scores: torch.Tensor, remaining: Sequence[float]) -> torch.Tensor:
    top = scores.topk(2, dim=1).values
    return top[:, 0] - top[:, 1] > sum(remaining) + exact_margin(len(remaining))


def _paper_stops(
    seen: list[torch.Tensor],
    scores: torch.Tensor,
    weights: Sequence[float],
    leaders: torch.Tensor,
    policy: ExitPolicy,
) -> torch.Tensor:
    """Line 9 of Algorithm 1 for i = len(seen) < K; weights in descending order."""
    count = len(seen)
    total = sum(weights[:count])
    leading = scores.double().gather(1, leaders[:, None])[:, 0] / total
    if count == 1:
        return leading > policy.threshold
    spread = torch.zeros_like(leading)
    for weight, probabilities in zip(weights, seen, strict=False):
        own = probabilities.double().gather(1, leaders[:, None])[:, 0]
        spread += weight * (own - leading) ** 2
    quantile = float(special.ndtri(1 - policy.alpha / 2))
    root_of_squares = sum(weight**2 for weight in weights[:count]) ** 0.5
    bar = 0.5 + quantile * root_of_squares / total * (spread / total).sqrt()
    return torch.gt(leading, bar)
