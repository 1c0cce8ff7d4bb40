"""Plain text for `sween plan`. Bounds are printed rounded up, radii rounded down."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext

from sween.theory.expected_radius import ExpectedRadius, Outlook
from sween.theory.guarantee import Achievement, PaperPlan, Requirement, Setting, Terms
from sween.theory.inputs import PRECISE, as_written

ASSUMPTION = (
    "Theorem 2 assumes a loss that is bounded (into [0,1] in Lemma 6) and L-Lipschitz; "
    "cross-entropy is so only when clipped: with probabilities floored at p0 it is bounded by "
    "log(1/p0) and Lipschitz with 1/p0."
)

SAYS_NOTHING = "a loss in [0,1] never has a gap above 1, so this bound says nothing"


def render_requirement(requirement: Requirement) -> str:
    """The sizes, every term of the sum, and the paper's own K beside it."""
    epsilon = as_written(requirement.epsilon)
    lines = [
        f"Theorem 2: risk within epsilon = {_number(requirement.epsilon)} of the best mixture, "
        f"with probability at least {_confidence(requirement.setting)}",
        _given(requirement.setting),
        f"  members   K = {_size(requirement.members)}",
        f"  images    n = {_size(requirement.images)}",
        f"  samples   s = {_size(requirement.samples)} per image and member",
        "the sum that has to stay below epsilon:",
        *_term_lines(requirement.terms),
        f"  epsilon/4 = {_up(epsilon / 4):<8} phi_0 may be this far from the infimum",
        f"  sum       = {_up(requirement.bound):<8} "
        f"below epsilon by {_scientific(requirement.margin)}",
    ]
    if epsilon >= 1:
        lines.append(f"note: {SAYS_NOTHING}; ask for an epsilon below 1.")
    lines += [*_paper_lines(requirement.paper, epsilon), ASSUMPTION]
    return "\n".join(lines)


def render_achievement(achievement: Achievement) -> str:
    """The terms for given sizes and the gap they guarantee, or why there is none."""
    lines = [
        f"Theorem 2 with K = {_size(achievement.members)} members, "
        f"n = {_size(achievement.images)} images, s = {_size(achievement.samples)} samples, "
        f"with probability at least {_confidence(achievement.setting)}",
        _given(achievement.setting),
        *_term_lines(achievement.terms),
        f"  sum       = {_up(achievement.terms.total)}",
    ]
    if achievement.epsilon is None or achievement.epsilon_if_attained is None:
        lines.append(
            "the theorem gives nothing here: its Lemma 3 needs "
            f"K >= {_size(achievement.fewest_members)} members, got {achievement.members:,}, "
            "so eps3 above is not a bound"
        )
    else:
        lines += [
            f"  epsilon   = {_up(achievement.epsilon):<8} 4/3 of the sum: phi_0 is only within "
            "epsilon/4 of the infimum",
            f"  epsilon   = {_up(achievement.epsilon_if_attained):<8} when some mixture attains "
            "the infimum",
        ]
        if not achievement.says_something:
            lines.append(f"note: {SAYS_NOTHING}.")
    lines.append(ASSUMPTION)
    return "\n".join(lines)


def render_expected_radius(expectation: ExpectedRadius) -> str:
    """The mean radius, abstention, and the limits that n and p set."""
    rival = (
        "" if expectation.runner_up is None else f", runner-up = {_number(expectation.runner_up)}"
    )
    lines = [
        f"expected certified radius: p = {_number(expectation.p)}{rival}, n = {expectation.n:,}, "
        f"alpha = {_number(expectation.alpha)}, sigma = {_number(expectation.sigma)}",
        *_outlook_lines("Cohen's bound", expectation.cohen),
    ]
    if expectation.two_class is not None:
        lines += [
            *_outlook_lines("two-class bound", expectation.two_class),
            "  assumed: the rest is split over classes too small to overtake the runner-up",
        ]
    return "\n".join(lines)


def _given(setting: Setting) -> str:
    return (
        f"given L = {_number(setting.lipschitz)}, M = {setting.num_classes} classes, "
        f"||phi||_p = {_number(setting.phi_norm)}, beta = {_number(setting.beta)}"
    )


def _confidence(setting: Setting) -> str:
    return f"1 - eta, eta = {_number(setting.eta)}"


def _term_lines(terms: Terms) -> list[str]:
    with localcontext(PRECISE):
        twice_1, twice_2 = 2 * terms.epsilon_1, 2 * terms.epsilon_2
    return [
        f"  2 eps1    = {_up(twice_1):<8} noise samples per image and member (Lemma 10)",
        f"  2 eps2    = {_up(twice_2):<8} images (Lemma 9)",
        f"  eps3      = {_up(terms.epsilon_3):<8} members (Lemma 3)",
    ]


def _paper_lines(paper: PaperPlan, epsilon: Decimal) -> list[str]:
    with localcontext(PRECISE):
        as_printed, corrected = paper.bound_as_written / epsilon, paper.bound / epsilon
    return [
        f"the paper's own K = {_size(paper.members)}, from the constant 256 and log(1/eta):",
        "  256 lets eps3 reach epsilon/2, not epsilon/4: the sum comes to "
        f"{_up(paper.bound_as_written)} = {_up(as_printed)} epsilon;",
        "  its Lemma 3 at level eta/3 needs log(3/eta), which makes it "
        f"{_up(paper.bound)} = {_up(corrected)} epsilon.",
        "  So K above uses 4096 = 8^4 in place of 256 = 4^4, and log(3/eta).",
    ]


def _outlook_lines(name: str, outlook: Outlook) -> list[str]:
    note, abstained = "", _chance(outlook.abstain_probability)
    if outlook.draws:
        note = f"   standard error {outlook.standard_error:.1g}"
        abstained = f"{outlook.abstain_probability * outlook.draws:,.0f} of {outlook.draws:,} draws"
    return [
        f"  {name}",
        f"    expected radius           {_down(outlook.expected)}{note}",
        f"    probability of abstaining {abstained}",
        f"    with endless votes        {_down(outlook.asymptotic)}",
        f"    most that n votes allow   {_down(outlook.largest)}",
    ]


def _size(size: int) -> str:
    return f"{size:,}" if size < 10**6 else f"{size:,} (about {_scientific(Decimal(size))})"


def _up(value: Decimal) -> str:
    return _plain(Context(prec=6, rounding=ROUND_CEILING).create_decimal(value))


def _number(value: float) -> str:
    return _plain(as_written(value))


def _scientific(value: Decimal) -> str:
    return f"{value:.1e}"


def _plain(value: Decimal) -> str:
    """Without trailing zeros, and without an exponent where it can be read."""
    short = value.normalize()
    return f"{short:f}" if Decimal("1e-5") <= abs(short) < 10**12 else f"{short:g}"


def _down(radius: float) -> str:
    if math.isinf(radius):
        return "unlimited"
    return f"{Decimal(radius).quantize(Decimal('0.0001'), rounding=ROUND_FLOOR):f}"


def _chance(probability: float) -> str:
    return "below 1e-6" if probability < 1e-6 else _up(Decimal(probability))
