"""The settings of a certificate, checked."""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sween.arguments import check_type, real_number, whole_number
from sween.bounds.binomial import check_probability, lower_bound
from sween.bounds.radius import (
    bound_of,
    fewest_certified_votes,
    level_of_class,
    smallest_certifiable_n,
)
from sween.errors import BadInput, SmallSampleWarning
from sween.sampling.strategy import SamplingStrategy, sampling_with, strategy_of

N, ALPHA = 100_000, 0.001
"""The paper's values; the defaults of the Python API and of the command line."""

VOTES = ("hard", "soft")

OPTIONS = ("radii", "tolerance", "budget")
"""Settings that not every strategy has; see `SamplingStrategy.option`."""

LARGEST_N = 10**9
"""The largest n for which the error of the incomplete beta function was measured."""

SMALLEST_ASKED = 1e-96
"""The smallest alpha: bounds use parts of it, which must stay above `SMALLEST_ALPHA`."""

WARN_ABOVE_SHARE = 0.8
"""Warn if even four votes in five are not enough for a certificate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertifySettings:
    """The sampling of a certificate; checked when made.

    Settings under which nothing could ever be certified are refused, with the arithmetic; settings
    under which almost everything abstains give a SmallSampleWarning.

    Attributes:
        n0: votes that select the class; 100 by default, 1,000 where they choose the size too.
        n: fresh votes that bound its probability.
        alpha: failure probability of one certificate.
        bound: `cohen` or `two-class`.
        sampling: how votes are spent, each certificate holding with probability 1 - alpha:
            `fixed`, n votes per image; `decide`, until it is clear which of `radii` are certified,
            n at most; `tolerance`, as many as the n0 pilot votes say are needed for a radius within
            this share of what n votes would give; `budget`, a total over all images, spread by
            their pilot votes for the largest average radius, n at most on each.
        seed: of the noise; a secret one where images come from untrusted sources.
        radii: of `decide`.
        tolerance: of `tolerance`, between 0 and 1.
        budget: of `budget`: noisy images in all, pilot votes included.
        votes: `hard`, the argmax of each noisy image votes; or `soft`, the mean probability is
            bounded (see `soft.py`): another smoothed classifier, with fixed sampling and Cohen's
            bound only.

    Example:
        >>> from sween.sampling import CertifySettings
        >>> CertifySettings(sampling="decide", radii=[0.25, 0.5]).radii
        (0.25, 0.5)
        >>> CertifySettings(n=5)
        Traceback (most recent call last):
            ...
        sween.errors.BadInput: n = 5 can never certify at alpha = 0.001 with the cohen bound: ...
    """

    n0: int = None  # type: ignore[assignment]  # the strategy's own default
    n: int = N
    alpha: float = ALPHA
    bound: str = "cohen"
    sampling: str = "fixed"
    seed: int = 0
    radii: Sequence[float] = ()
    tolerance: float | None = None
    budget: int | None = None
    votes: str = "hard"

    def __post_init__(self) -> None:
        radii = self.radii if isinstance(self.radii, Iterable) else (self.radii,)
        object.__setattr__(self, "radii", tuple(radii))
        if self.n0 is None:
            object.__setattr__(self, "n0", self.strategy.default_n0)
        for name in ("n0", "n", "seed"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if not -(2**63) <= self.seed < 2**63:
            got = self.seed
            raise BadInput("seed", expected="64 bits", got=got, fix="pass a smaller number")
        object.__setattr__(self, "alpha", real_number("alpha", self.alpha))
        check_probability("alpha", self.alpha)
        if self.alpha < SMALLEST_ASKED:
            raise BadInput(
                "alpha",
                expected=f"at least {SMALLEST_ASKED:g}: bounds divide it",
                got=self.alpha,
                fix="try 0.001",
            )
        bound_of(self.bound)
        self._check_options()
        for name, usual in (("n0", 100), ("n", 100_000)):
            if getattr(self, name) < 1:
                got = getattr(self, name)
                raise BadInput(name, expected="at least 1 vote", got=got, fix=f"try {usual}")
        for name in ("n0", "n"):
            check_size(name, getattr(self, name))
        self._refuse_hopeless_n()

    @property
    def strategy(self) -> SamplingStrategy:
        """The strategy that `sampling` and `votes` name."""
        return strategy_of(self.sampling, self.votes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a config, without the settings of other strategies."""
        content = dataclasses.asdict(self)
        for option in OPTIONS:
            if option != self.strategy.option:
                del content[option]
        return content | ({"radii": list(self.radii)} if self.radii else {})

    def _check_options(self) -> None:
        own = self.strategy.option
        for option in OPTIONS:
            sampling = sampling_with(option)
            given = getattr(self, option) not in ((), None)
            if given and option != own:
                raise BadInput(
                    option,
                    expected=f"sampling {sampling}",
                    got=self.sampling,
                    fix=f"use sampling {sampling}, or drop {option}",
                )
            if not given and option == own and option != "radii":
                raise BadInput(
                    option, expected=f"a value for {sampling}", got="none", fix=f"pass `{option}`"
                )
        for name, value in self.strategy.check(self).items():
            object.__setattr__(self, name, value)

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


def settings_of(
    settings: CertifySettings | None, options: Mapping[str, Any], *, seed: int | None
) -> CertifySettings:
    """The settings that were passed, or those of separate options; refuses a mixture of both.

    Args:
        settings: all options at once, or None.
        options: each of them; those left at their defaults were not passed.
        seed: the default of that option.
    """
    if settings is None:
        return CertifySettings(**options)
    check_type("settings", settings, CertifySettings, fix="pass CertifySettings(n=...)")
    defaults = {field.name: field.default for field in dataclasses.fields(CertifySettings)}
    passed = [name for name, value in options.items() if value != (defaults | {"seed": seed})[name]]
    if passed:
        raise BadInput(
            ", ".join(passed),
            expected="no separate options next to settings",
            got="both",
            fix=f"pass CertifySettings({passed[0]}=...)",
        )
    return settings


def check_size(name: str, value: int) -> None:
    """Refuse more votes than the bounds were checked for."""
    if value > LARGEST_N:
        raise BadInput(
            name,
            expected=f"at most {LARGEST_N}, for which the bounds' rounding was checked",
            got=value,
            fix="the paper uses n0 = 100 and n = 100000",
        )
