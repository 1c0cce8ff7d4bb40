"""Theorem 2 of the paper in both directions: sizes for a gap of risk, and the gap of given sizes.

Draw K members from a distribution p over networks and fit their weights on n images, with s noise
samples per image and member. With probability at least 1 - eta over members, images and noise, the
risk of the fitted ensemble exceeds the best risk of any mixture phi with ||phi||_p <= phi_norm by
less than 2 epsilon_1 + 2 epsilon_2 + epsilon_3 + (distance of phi_0 from the infimum), where each
of the three terms holds with probability at least 1 - eta/3. The loss must lie in [0,1] and be
L-Lipschitz in the M class probabilities (l2 norm). Lemma k is the one labelled lem<k> in the
paper's source; a typeset copy numbers it k + 1.

Sizes such as 1e27 are beyond the 16 digits of a float, and an inequality has to hold at the very
integer that is reported. So everything is a `Decimal` of 400 digits, and 0.1 means one tenth.
"""

from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import NamedTuple

from sween.errors import BadInput
from sween.theory.inputs import LARGEST_SIZE, checked

PRECISE = Context(prec=400)

VACUOUS = "note: the gap of a loss in [0,1] is never above 1, so this bound is vacuous"
ASSUMPTION = (
    "Theorem 2 assumes a loss that is bounded (scaled to [0,1] in Lemma 6) and L-Lipschitz. "
    "Cross-entropy is neither unless clipped: with probabilities floored at p0 it is bounded by "
    "log(1/p0), with Lipschitz constant 1/p0."
)


class Setting(NamedTuple):
    """What Theorem 2 takes as given; see `required_sizes`."""

    eta: Decimal
    lipschitz: Decimal
    num_classes: Decimal
    phi_norm: Decimal
    beta: Decimal


class Terms(NamedTuple):
    """The three error terms, and `total` = 2 epsilon_1 + 2 epsilon_2 + epsilon_3."""

    epsilon_1: Decimal
    epsilon_2: Decimal
    epsilon_3: Decimal
    total: Decimal


@dataclass(frozen=True)
class Guarantee:
    """The gap of risk that K members, n images and s noise samples per image and member guarantee.

    Attributes:
        epsilon: the gap; infinite where K is below `fewest_members`, which Lemma 3 needs.
        bound: the proof's sum, `terms.total` + epsilon/4: phi_0 is within epsilon/4 of the infimum.
        paper: where a gap was asked for, the sizes by the paper's printed constants and their sum.
    """

    setting: Setting
    members: int
    images: int
    samples: int
    terms: Terms
    fewest_members: int
    epsilon: Decimal
    bound: Decimal
    paper: "Guarantee | None" = None

    def __str__(self) -> str:
        with localcontext(PRECISE):
            return _achieved(self) if self.paper is None else _required(self, self.paper)


def required_sizes(
    *, epsilon: float, eta: float, lipschitz: float, num_classes: int, phi_norm: float, beta: float
) -> Guarantee:
    """The smallest K, n and s for which the proof of Theorem 2 gives a gap below epsilon.

    2 epsilon_1, 2 epsilon_2, epsilon_3 and phi_0's distance from the infimum get a quarter of
    epsilon each. For that K needs the constant 4096, and log(3/eta), as Lemma 3 is used at level
    eta/3. The paper prints 256, with which epsilon_3 reaches epsilon/2, and log(1/eta).

    Args:
        epsilon: the gap of risk to stay below, for a loss in [0,1].
        eta: the probability with which the guarantee may fail.
        lipschitz: L, the loss's Lipschitz constant in the probabilities (l2 norm).
        num_classes: M.
        phi_norm: ||phi_0||_p, the largest ratio of phi_0's density to the one members come from.
        beta: the constant of Lemma 9, which the paper leaves open.

    Example:
        >>> from sween.theory import required_sizes
        >>> need = required_sizes(
        ...     epsilon=0.1, eta=0.05, lipschitz=1, num_classes=10, phi_norm=2, beta=1
        ... )
        >>> need.members, need.samples, need.paper.members
        (24431601677, 1338482, 1217224521)
    """
    (gap,) = checked(epsilon=epsilon)
    given = {"eta": eta, "lipschitz": lipschitz, "num_classes": num_classes}
    setting = Setting(*checked(**given, phi_norm=phi_norm, beta=beta))

    def smallest(members: int, paper: Guarantee | None = None) -> Guarantee:
        # A term is its value at size 1 over a root of the size, here sqrt(n) and sqrt(s).
        images = _integer_above((8 * epsilon_2(setting, members, 1) / gap) ** 2)
        samples = _integer_above((8 * epsilon_1(setting, members, images, 1) / gap) ** 2)
        found = _guarantee(setting, members, images, samples)
        return replace(found, epsilon=gap, bound=found.terms.total + gap / 4, paper=paper)

    with localcontext(PRECISE):
        paper = smallest(_integer_above((2 * epsilon_3(setting, 1, setting.eta) / gap) ** 4))
        members = _integer_above((4 * epsilon_3(setting, 1, setting.eta / 3) / gap) ** 4)
        return smallest(max(members, paper.fewest_members), paper)


def achieved_epsilon(
    *,
    members: int,
    images: int,
    samples: int,
    eta: float,
    lipschitz: float,
    num_classes: int,
    phi_norm: float,
    beta: float,
) -> Guarantee:
    """The gap that Theorem 2 guarantees, with probability at least 1 - eta, for the sizes one has.

    It is 4/3 of the terms' total, as phi_0 is only within epsilon/4 of the infimum; where some
    mixture attains the infimum, it is the total itself. The weights are fitted on `images`, with
    `samples` noise samples for each and each member; the rest is as in `required_sizes`.

    Example:
        >>> from sween.theory import achieved_epsilon
        >>> guarantee = achieved_epsilon(
        ...     members=3, images=2000, samples=100, eta=0.05,
        ...     lipschitz=1, num_classes=10, phi_norm=2, beta=1,
        ... )
        >>> guarantee.fewest_members, float(guarantee.epsilon)
        (597, inf)
    """
    sizes = checked(members=members, images=images, samples=samples)
    given = {"eta": eta, "lipschitz": lipschitz, "num_classes": num_classes}
    setting = Setting(*checked(**given, phi_norm=phi_norm, beta=beta))
    with localcontext(PRECISE):
        return _guarantee(setting, *map(int, sizes))


def _guarantee(setting: Setting, members: int, images: int, samples: int) -> Guarantee:
    first = epsilon_1(setting, members, images, samples)
    second = epsilon_2(setting, members, images)
    third = epsilon_3(setting, members, setting.eta / 3)
    terms = Terms(first, second, third, 2 * first + 2 * second + third)
    # Lemma 3 needs K >= M ||phi||^2 factor^2: with fewer, the weights that Lemma 1 finds may be too
    # far from summing to 1 to be rescaled.
    factor = setting.phi_norm * deviation_factor(setting.eta / 3)
    fewest = _integer_above(setting.num_classes * factor**2)
    epsilon = 4 * terms.total / 3 if members >= fewest else Decimal("Infinity")
    return Guarantee(setting, members, images, samples, terms, fewest, epsilon, bound=epsilon)


def deviation_factor(eta: Decimal) -> Decimal:
    """Lemma 10: sqrt(s) times how far the mean of s random points strays from its expectation.

    For s independent draws of any distribution on the simplex, the l2 distance exceeds factor /
    sqrt(s) with probability at most eta. The 1 bounds the mean distance (a point of the simplex has
    l2 norm at most 1), the root is McDiarmid's inequality (a draw moves the mean by at most 2/s).
    """
    return 1 + (-2 * eta.ln()).sqrt()


def epsilon_1(setting: Setting, members: int, images: int, samples: int) -> Decimal:
    """Lemma 10 for all K n estimated smoothed outputs at once, each at level eta / (3 K n)."""
    factor = deviation_factor(setting.eta / (3 * members * images))
    return setting.lipschitz * factor / Decimal(samples).sqrt()


def epsilon_2(setting: Setting, members: int, images: int) -> Decimal:
    """Lemma 9 at level eta/3: complexity, and McDiarmid's inequality for a loss in [0,1]."""
    complexity = 2 * setting.beta * setting.lipschitz * setting.num_classes * members
    return (complexity + (8 * (12 / setting.eta).ln()).sqrt()) / Decimal(images).sqrt()


def epsilon_3(setting: Setting, members: int, eta: Decimal) -> Decimal:
    """Lemma 3 at level eta: 2 L sqrt(||phi|| factor) (M/K)^(1/4), K members in place of phi_0."""
    ratio = (setting.num_classes / members).sqrt()
    return 2 * setting.lipschitz * (setting.phi_norm * deviation_factor(eta) * ratio).sqrt()


def _integer_above(threshold: Decimal) -> int:
    """The smallest integer above a threshold, which is transcendental and so never an integer."""
    size = int(threshold.to_integral_value(rounding=ROUND_FLOOR)) + 1
    if size > LARGEST_SIZE:
        fix, got = "raise epsilon, or lower lipschitz, phi_norm or beta", f"about {threshold:.1e}"
        raise BadInput("the size Theorem 2 asks for", expected="at most 1e300", got=got, fix=fix)
    return size


def _required(need: Guarantee, paper: Guarantee) -> str:
    given, epsilon = need.setting, need.epsilon
    as_printed = paper.bound - paper.terms.epsilon_3 + epsilon_3(given, paper.members, given.eta)
    note = f"{VACUOUS}; ask for an epsilon below 1.\n" if epsilon >= 1 else ""
    return f"""\
Theorem 2: risk within epsilon = {plain(epsilon)} of the best mixture, {_given(given)}
  members   K = {_size(need.members)}
  images    n = {_size(need.images)}
  samples   s = {_size(need.samples)} per image and member
the terms whose sum must stay below epsilon:
{_terms(need.terms)}
  epsilon/4 = {rounded_up(epsilon / 4):<8} phi_0 may be this far from the infimum
  sum       = {rounded_up(need.bound):<8} below epsilon by {epsilon - need.bound:.1e}
{note}the paper's K = {_size(paper.members)}, from the constant 256 and log(1/eta):
  256 bounds eps3 by epsilon/2, not epsilon/4, so the sum is \
{rounded_up(as_printed)} = {rounded_up(as_printed / epsilon)} epsilon;
  Lemma 3 at level eta/3 needs log(3/eta), which gives \
{rounded_up(paper.bound)} = {rounded_up(paper.bound / epsilon)} epsilon.
  The K above uses 4096 = 8^4 instead of 256 = 4^4, and log(3/eta).
{ASSUMPTION}"""


def _achieved(have: Guarantee) -> str:
    verdict = f"""\
  epsilon   = {rounded_up(have.epsilon):<8} 4/3 of the sum: phi_0 is only within epsilon/4 of the \
infimum
  epsilon   = {rounded_up(have.terms.total):<8} when some mixture attains the infimum"""
    if have.members < have.fewest_members:
        verdict = f"""\
Theorem 2 does not apply: Lemma 3 needs K >= {_size(have.fewest_members)} members, \
got {have.members:,}, so eps3 above is not a bound"""
    elif have.epsilon >= 1:
        verdict += f"\n{VACUOUS}."
    return f"""\
Theorem 2 with K = {_size(have.members)} members, n = {_size(have.images)} images, \
s = {_size(have.samples)} samples, {_given(have.setting)}
{_terms(have.terms)}
  sum       = {rounded_up(have.terms.total)}
{verdict}
{ASSUMPTION}"""


def _given(setting: Setting) -> str:
    return f"""with probability at least 1 - eta, eta = {plain(setting.eta)}
given L = {plain(setting.lipschitz)}, M = {setting.num_classes} classes, \
||phi||_p = {plain(setting.phi_norm)}, beta = {plain(setting.beta)}"""


def _terms(terms: Terms) -> str:
    return f"""\
  2 eps1    = {rounded_up(2 * terms.epsilon_1):<8} noise samples per image and member (Lemma 10)
  2 eps2    = {rounded_up(2 * terms.epsilon_2):<8} images (Lemma 9)
  eps3      = {rounded_up(terms.epsilon_3):<8} members (Lemma 3)"""


def _size(size: int) -> str:
    return f"{size:,}" if size < 10**6 else f"{size:,} (about {Decimal(size):.1e})"


def rounded_up(value: Decimal) -> str:
    """Six digits, rounded up as a bound has to be."""
    return plain(Context(prec=6, rounding=ROUND_CEILING).create_decimal(value))


def plain(value: Decimal) -> str:
    """Without trailing zeros, and without an exponent where it can be read."""
    short = value.normalize()
    return f"{short:f}" if Decimal("1e-5") <= abs(short) < 10**12 else f"{short:g}"
