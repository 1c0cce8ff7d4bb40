"""What a certificate is asked for, and the records it comes in."""

import bisect
import dataclasses
import functools
import warnings
from typing import Any

from sween.arguments import real_number, whole_number
from sween.bounds.anytime import check_radii_to_decide
from sween.bounds.binomial import check_probability, lower_bound
from sween.bounds.decision import binomial_p_value
from sween.bounds.radius import (
    BOUNDS,
    check_sigma,
    fewest_certified_votes,
    level_of_class,
    smallest_certifiable_n,
)
from sween.errors import BadInput, SmallSampleWarning, UnknownName
from sween.records import ABSTAIN

SAMPLING = ("fixed", "decide", "tolerance", "budget")
"""How samples are spent on an image."""

VOTES = ("hard", "soft")

OPTION_OF = {"decide": "radii", "tolerance": "tolerance", "budget": "budget"}
"""What each adaptive sampling needs to be told."""

LARGEST_N = 10**9
"""The error of the incomplete beta function was measured up to here."""

SMALLEST_ASKED = 1e-96
"""Of alpha: the smallest part of it that a bound gets is still above what bounds take."""

WARN_ABOVE_SHARE = 0.8
"""Warn when even four votes in five are not enough to be certified."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertifySettings:
    """The sampling of a certificate; checked when made.

    Settings under which nothing could ever be certified are refused, with the arithmetic; settings
    under which almost everything abstains give a SmallSampleWarning.

    Attributes:
        n0: votes that select the class.
        n: fresh votes that bound its probability.
        alpha: failure probability of one certificate.
        bound: `cohen` or `two-class`.
        sampling: how votes are spent, each certificate holding with probability 1 - alpha:
            `fixed`, n votes an image; `decide`, until it is clear which of `radii` are certified,
            n at most; `tolerance`, as many as the n0 pilot votes say are needed for a radius within
            this share of what n votes would give; `budget`, a total over all images, spread by
            their pilot votes for the largest average radius, n at most on each.
        seed: of the noise.
        radii: of `decide`.
        tolerance: of `tolerance`, between 0 and 1.
        budget: of `budget`: noisy images in all, pilot votes included.
        votes: `hard`, the argmax of each noisy image votes; or `soft`, the mean probability is
            bounded (see `soft.py`): another smoothed classifier, with fixed sampling and Cohen's
            bound only.
    """

    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    bound: str = "cohen"
    sampling: str = "fixed"
    seed: int = 0
    radii: tuple[float, ...] = ()
    tolerance: float | None = None
    budget: int | None = None
    votes: str = "hard"

    def __post_init__(self) -> None:
        for name in ("n0", "n", "seed"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        object.__setattr__(self, "alpha", real_number("alpha", self.alpha))
        check_probability("alpha", self.alpha)
        if self.alpha < SMALLEST_ASKED:
            raise BadInput(
                "alpha",
                expected=f"at least {SMALLEST_ASKED:g}: bounds divide it",
                got=self.alpha,
                fix="try 0.001",
            )
        if self.bound not in BOUNDS:
            raise UnknownName("bound", self.bound, BOUNDS)
        if self.sampling not in SAMPLING:
            raise UnknownName("sampling", self.sampling, SAMPLING)
        if self.votes not in VOTES:
            raise UnknownName("votes", self.votes, VOTES)
        self._check_options()
        for name, usual in (("n0", 100), ("n", 100_000)):
            if getattr(self, name) < 1:
                got = getattr(self, name)
                raise BadInput(name, expected="at least 1 vote", got=got, fix=f"try {usual}")
        for name in ("n0", "n"):
            check_size(name, getattr(self, name))
        self._refuse_hopeless_n()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a config; what another sampling would need is left out."""
        content = dataclasses.asdict(self)
        for sampling, option in OPTION_OF.items():
            if sampling != self.sampling:
                del content[option]
        return content | ({"radii": list(self.radii)} if self.radii else {})

    def _check_options(self) -> None:
        for sampling, option in OPTION_OF.items():
            given = getattr(self, option) not in ((), None)
            if given and self.sampling != sampling:
                raise BadInput(
                    option,
                    expected=f"sampling {sampling}",
                    got=self.sampling,
                    fix=f"pass --sampling {sampling}, or leave {option} out",
                )
            if not given and self.sampling == sampling and option != "radii":
                raise BadInput(
                    option, expected=f"a value for {sampling}", got="none", fix=f"pass --{option}"
                )
        if self.sampling == "decide":
            object.__setattr__(self, "radii", check_radii_to_decide(self.radii))
        if self.sampling == "decide" and self.bound != "cohen":
            raise BadInput(
                "bound", expected="cohen with decide", got=self.bound, fix="use --bound cohen"
            )
        if self.votes == "soft" and (self.sampling, self.bound) != ("fixed", "cohen"):
            raise BadInput(
                "votes soft",
                expected="sampling fixed and bound cohen",
                got=f"{self.sampling} and {self.bound}",
                fix="leave --sampling and --bound out",
            )
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", real_number("tolerance", self.tolerance))
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise BadInput(
                "tolerance", expected="between 0 and 1", got=self.tolerance, fix="0.05 is 5%"
            )
        if self.budget is not None:
            object.__setattr__(self, "budget", whole_number("budget", self.budget))

    def _refuse_hopeless_n(self) -> None:
        n, alpha, bound = self.n, self.alpha, self.bound
        least = smallest_certifiable_n(alpha, bound)
        if n < least:
            best = float(lower_bound(n, n, level_of_class(alpha, bound)))
            raise BadInput(
                f"n = {n} can never certify at alpha = {alpha} with the {bound} bound: even {n} of "
                f"{n} votes only show p > {best:.4f}, which is not enough",
                fix=f"use n >= {least}; the paper uses 100000",
            )
        fewest = fewest_certified_votes(n, alpha, bound)
        if fewest > WARN_ABOVE_SHARE * n:
            warnings.warn(
                f"n = {n} at alpha = {alpha} certifies only images with at least {fewest} of {n} "
                f"votes ({fewest / n:.0%}); most will abstain; the paper uses n = 100000",
                SmallSampleWarning,
                stacklevel=4,
            )


def check_size(name: str, value: int) -> None:
    """Refuse more votes than the bounds were proven for."""
    if value > LARGEST_N:
        raise BadInput(
            name,
            expected=f"at most {LARGEST_N}, up to where the bounds' rounding is proven",
            got=value,
            fix="the paper uses n0 = 100 and n = 100000",
        )


def check_predict_settings(*, n: int, alpha: float, sigma: float) -> None:
    """Refuse settings under which every prediction abstains; warn where almost all will."""
    check_size("n", whole_number("n", n))
    check_probability("alpha", real_number("alpha", alpha))
    check_sigma(sigma)
    if n < 1:
        raise BadInput("n", expected="at least 1 vote", got=n, fix="try 100")
    if binomial_p_value(n, 0) > alpha:
        least = n
        while binomial_p_value(least, 0) > alpha:
            least += 1
        raise BadInput(
            f"n = {n} always abstains at alpha = {alpha}: {n} of {n} votes have the p-value "
            f"2 * 2^-{n} = {2 * 2.0**-n:.4g}, above alpha",
            fix=f"use n >= {least}",
        )
    fewest = _fewest_votes(n, alpha)
    if fewest > WARN_ABOVE_SHARE * n:
        warnings.warn(
            f"n = {n} at alpha = {alpha} answers only where at least {fewest} of {n} votes "
            f"({fewest / n:.0%}) agree; most will abstain; try n = 100",
            SmallSampleWarning,
            stacklevel=4,
        )


@functools.lru_cache
def _fewest_votes(n: int, alpha: float) -> int:
    """Votes for one class of two, of n, with which it is predicted."""
    majorities = range(n // 2 + 1, n + 1)  # whose p-values fall
    first = bisect.bisect_left(
        majorities, -alpha, key=lambda votes: -binomial_p_value(votes, n - votes)
    )
    return majorities[first]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """One image's answer: the label, or ABSTAIN, with the votes behind it."""

    index: int
    prediction: int
    counts: tuple[int, ...]
    p_value: float
    n: int
    alpha: float
    sigma: float
    seed: int

    @property
    def abstained(self) -> bool:
        return self.prediction == ABSTAIN

    def __str__(self) -> str:
        """One line for people."""
        answer = "abstained" if self.abstained else f"class {self.prediction}"
        return (
            f"index {self.index}: {answer}, {max(self.counts):,} of {self.n:,} votes "
            f"(p = {self.p_value:.2g}, alpha = {self.alpha:g}, sigma = {self.sigma:g})"
        )
