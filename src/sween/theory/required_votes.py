"""The votes that a certificate of a chosen radius takes, before a single one is drawn."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import special

from sween.bounds.binomial import check_probability
from sween.bounds.radius import fewest_certified_votes, noise_level, radius_cohen
from sween.records import format_radius
from sween.theory.inputs import as_written, checked
from sween.theory.theorem2 import plain

CHANCE = 0.95
"""Of a certificate of the radius, which the probabilities and numbers of votes are computed for."""

USUAL = (100, 1_000, 10_000, 100_000)
"""Numbers of votes to choose from."""

MOST_VOTES = 10**9


@dataclass(frozen=True)
class VotesNeeded:
    """What a number of votes takes to certify the radius.

    Attributes:
        n: all votes.
        votes: the fewest for the class that certify it; None if n for it are too few.
        probability: of a vote for the class at which the radius is certified with probability
            CHANCE; None if n votes are too few.
        largest: the radius when all n votes fall on the class.
    """

    n: int
    votes: int | None
    probability: float | None
    largest: float


@dataclass(frozen=True)
class RequiredVotes:
    """The votes that a certificate of a radius takes, by Cohen's bound.

    Attributes:
        miss: the probability of all other classes below which the radius can be certified at all.
        fewest: the fewest votes that certify it if all of them are for the class; None beyond 1e9.
        sizes: what each number of votes takes.
        n_for_p: about how many votes certify it with probability CHANCE if the class has
            probability `p`; None without a `p`, or if no number up to 1e9 does.
    """

    radius: float
    alpha: float
    sigma: float
    p: float | None
    miss: float
    fewest: int | None
    sizes: tuple[VotesNeeded, ...]
    n_for_p: int | None

    def __str__(self) -> str:
        radius, alpha, sigma = (plain(as_written(x)) for x in (self.radius, self.alpha, self.sigma))
        fewest = "more than 1e9" if self.fewest is None else f"{self.fewest:,}, all for the class"
        lines = [
            f"votes for a certified radius of {radius}: sigma = {sigma}, alpha = {alpha}, "
            "Cohen's bound",
            f"    probability of the class  above {_probability(1 - self.miss, self.miss)}",
            f"    fewest votes              {fewest}",
        ]
        if self.p is not None:
            enough = "no number is enough" if self.p <= 1 - self.miss else "more than 1e9"
            votes = enough if self.n_for_p is None else f"about {self.n_for_p:,}"
            lines.append(f"    votes if it is {plain(as_written(self.p)):<10} {votes}")
        lines.append(f"{'n':>15}{'votes needed':>15}{'share':>10}{'p':>10}{'largest radius':>17}")
        for size in self.sizes:
            if size.votes is None or size.probability is None:
                needed = f"{'too few':>15}{'-':>10}{'-':>10}"
            else:
                share = f"{100 * size.votes / size.n:.2f}%"
                p = _probability(size.probability, 1 - size.probability)
                needed = f"{size.votes:>15,}{share:>10}{p:>10}"
            lines.append(f"{size.n:>15,}{needed}{format_radius(size.largest, 4):>17}")
        lines.append(
            f"  p: the probability of the class at which {CHANCE:.0%} of certificates reach it"
        )
        return "\n".join(lines)


def required_votes(
    radius: float, *, n: int, alpha: float, sigma: float, p: float | None = None
) -> RequiredVotes:
    """The votes that a certificate of a radius takes, for some usual numbers of votes and n.

    Args:
        radius: to certify.
        n: votes, at most 1e9.
        alpha: failure probability of the certificate.
        sigma: noise level.
        p: probability of a vote for the class, for the number of votes that it takes.

    Example:
        >>> from sween.theory import required_votes
        >>> needed = required_votes(0.5, n=1000, alpha=0.001, sigma=0.5, p=0.9)
        >>> needed.fewest, needed.n_for_p
        (40, 770)
        >>> [(size.n, size.votes) for size in needed.sizes]
        [(100, 95), (1000, 877), (10000, 8526), (100000, 84492)]
    """
    checked(radius=radius, n=n)
    check_probability("alpha", alpha)
    level = noise_level(sigma)
    if p is not None:
        checked(p=p)

    def votes(n: int) -> int:
        return fewest_certified_votes(n, alpha, radius=radius, sigma=sigma)

    def is_likely(n: int) -> bool:
        return votes(n) <= n and special.betainc(votes(n), n - votes(n) + 1, p) >= CHANCE

    def needed(n: int) -> VotesNeeded:
        largest = float(radius_cohen(n, n, alpha=alpha, sigma=sigma))
        if votes(n) > n:
            return VotesNeeded(n, None, None, largest)
        probability = special.betaincinv(votes(n), n - votes(n) + 1, CHANCE)
        return VotesNeeded(n, votes(n), float(probability), largest)

    n_for_p = None if p is None else _first(is_likely)
    return RequiredVotes(
        radius=radius,
        alpha=alpha,
        sigma=sigma,
        p=p,
        miss=float(special.ndtr(-radius / level)),
        fewest=_first(lambda n: votes(n) <= n),
        sizes=tuple(needed(size) for size in sorted({*USUAL, n})),
        n_for_p=None if n_for_p is None else _round_up(n_for_p),
    )


def _first(is_enough: Callable[[int], bool]) -> int | None:
    """The smallest number up to MOST_VOTES for which this holds, as for all larger ones."""
    high = 1
    while not is_enough(high):
        if high == MOST_VOTES:
            return None
        high = min(2 * high, MOST_VOTES)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _round_up(n: int) -> int:
    """To two digits: the chance rises with n in small steps back and forth."""
    unit = int(10 ** max(len(str(n)) - 2, 0))
    return -(-n // unit) * unit


def _probability(p: float, miss: float) -> str:
    """Four decimals, rounded up; near 1 by its distance from it."""
    return f"{math.ceil(p * 1e4) / 1e4:.4f}" if miss >= 1e-3 else f"1 - {max(miss, 1e-300):.1e}"
