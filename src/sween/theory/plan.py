"""Theorem 2 read in both directions: the sizes for a gap of risk, and the gap for given sizes."""

from decimal import Decimal, localcontext

from sween.theory import inputs
from sween.theory.concentration import (
    deviation_factor,
    epsilon_1,
    epsilon_2,
    epsilon_3,
    fewest_members_for_lemma_3,
    mixture_distance,
    smallest_integer_above,
)
from sween.theory.guarantee import Achievement, PaperPlan, Requirement, Setting, Terms
from sween.theory.inputs import PRECISE

MEMBERS_CONSTANT = 4096
"""(2 * 4)^4: makes epsilon_3 = 2 L (...)^(1/4) less than epsilon / 4."""

PAPER_MEMBERS_CONSTANT = 256
"""(2 * 2)^4: makes it less than epsilon / 2 only, though the paper's sum needs epsilon / 4."""


def required_sizes(
    *,
    epsilon: float,
    eta: float,
    lipschitz: float,
    num_classes: int,
    phi_norm: float,
    beta: float,
) -> Requirement:
    """The smallest members, images and samples for which Theorem 2's proof gives a gap < epsilon.

    With these sizes, with probability at least 1 - eta over members, images and noise, the risk of
    the fitted ensemble exceeds the best risk of any mixture phi with norm at most `phi_norm` by
    less than epsilon: the proof's sum 2 epsilon_1 + 2 epsilon_2 + epsilon_3 + epsilon / 4, with
    each part below a quarter of epsilon. The paper prints the constant 256 for K, with which its
    epsilon_3 reaches epsilon / 2 and the sum 5/4 epsilon, and log(1/eta) where its own Lemma 3 at
    level eta/3 needs log(3/eta). Here K uses 4096 and log(3/eta); `paper` keeps the printed one.

    Args:
        epsilon: the gap of risk to stay below, for a loss with values in [0,1].
        eta: the probability with which the guarantee may fail.
        lipschitz: L, the loss's Lipschitz constant in the probabilities (l2 norm).
        num_classes: M.
        phi_norm: ||phi_0||_p, the largest ratio of phi_0's density to the one members come from.
        beta: the constant of Lemma 9; the paper leaves it open.
    """
    gap = inputs.target_gap(epsilon)
    setting = _setting(eta, lipschitz, num_classes, phi_norm, beta)
    with localcontext(PRECISE):
        third = deviation_factor(inputs.failure_probability(eta) / 3)
        members = max(
            _members_above(MEMBERS_CONSTANT, third, gap, setting),
            _fewest_members(setting),
        )
        images, samples = _images_and_samples(members, gap, setting)
        terms = _terms(members, images, samples, setting)
        bound = terms.total + gap / 4
        margin = gap - bound
        assert margin > 0, "each part is below a quarter of epsilon"
        paper = _paper_plan(gap, setting)
    return Requirement(epsilon, setting, members, images, samples, terms, bound, margin, paper)


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
) -> Achievement:
    """The gap of risk that Theorem 2 guarantees, with probability 1 - eta, for given sizes.

    Args:
        members: K.
        images: n, the images that the weights are fitted on.
        samples: s, noise samples per image and member.
        eta: the probability with which the guarantee may fail.
        lipschitz: L, the Lipschitz constant of a loss with values in [0,1].
        num_classes: M.
        phi_norm: ||phi_0||_p.
        beta: the constant of Lemma 9.
    """
    setting = _setting(eta, lipschitz, num_classes, phi_norm, beta)
    terms = _terms(members, images, samples, setting)
    fewest = _fewest_members(setting)
    applies = members >= fewest
    with localcontext(PRECISE):
        epsilon = 4 * terms.total / 3 if applies else None
    return Achievement(
        members=members,
        images=images,
        samples=samples,
        setting=setting,
        terms=terms,
        lemma_3_applies=applies,
        fewest_members=fewest,
        epsilon=epsilon,
        epsilon_if_attained=terms.total if applies else None,
        says_something=epsilon is not None and epsilon < 1,
    )


def _setting(
    eta: float, lipschitz: float, num_classes: int, phi_norm: float, beta: float
) -> Setting:
    inputs.failure_probability(eta)
    inputs.lipschitz_constant(lipschitz)
    inputs.class_count(num_classes)
    inputs.density_norm(phi_norm)
    inputs.complexity_constant(beta)
    return Setting(eta, lipschitz, num_classes, phi_norm, beta)


def _fewest_members(setting: Setting) -> int:
    return fewest_members_for_lemma_3(
        eta=setting.eta, num_classes=setting.num_classes, phi_norm=setting.phi_norm
    )


def _members_above(constant: int, factor: Decimal, gap: Decimal, setting: Setting) -> int:
    lipschitz = inputs.lipschitz_constant(setting.lipschitz)
    norm = inputs.density_norm(setting.phi_norm)
    threshold = constant * (lipschitz / gap) ** 4 * (norm * factor) ** 2 * setting.num_classes
    return smallest_integer_above(threshold)


def _images_and_samples(members: int, gap: Decimal, setting: Setting) -> tuple[int, int]:
    # epsilon_2 is (...) / sqrt(n): 2 epsilon_2 < gap / 4 exactly where n > (8 (...) / gap)^2, and
    # (...) is its value at n = 1; the same for epsilon_1 and s.
    at_one_image = _epsilon_2(members, 1, setting)
    images = smallest_integer_above((8 * at_one_image / gap) ** 2)
    at_one_sample = _epsilon_1(members, images, 1, setting)
    return images, smallest_integer_above((8 * at_one_sample / gap) ** 2)


def _terms(members: int, images: int, samples: int, setting: Setting) -> Terms:
    first = _epsilon_1(members, images, samples, setting)
    second = _epsilon_2(members, images, setting)
    third = epsilon_3(
        members=members,
        eta=setting.eta,
        lipschitz=setting.lipschitz,
        num_classes=setting.num_classes,
        phi_norm=setting.phi_norm,
    )
    with localcontext(PRECISE):
        return Terms(first, second, third, total=2 * first + 2 * second + third)


def _epsilon_1(members: int, images: int, samples: int, setting: Setting) -> Decimal:
    return epsilon_1(
        members=members,
        images=images,
        samples=samples,
        eta=setting.eta,
        lipschitz=setting.lipschitz,
    )


def _epsilon_2(members: int, images: int, setting: Setting) -> Decimal:
    return epsilon_2(
        members=members,
        images=images,
        eta=setting.eta,
        lipschitz=setting.lipschitz,
        num_classes=setting.num_classes,
        beta=setting.beta,
    )


def _paper_plan(gap: Decimal, setting: Setting) -> PaperPlan:
    whole = deviation_factor(inputs.failure_probability(setting.eta))
    members = _members_above(PAPER_MEMBERS_CONSTANT, whole, gap, setting)
    images, samples = _images_and_samples(members, gap, setting)
    terms = _terms(members, images, samples, setting)
    as_written = mixture_distance(
        members,
        whole,
        inputs.lipschitz_constant(setting.lipschitz),
        setting.num_classes,
        inputs.density_norm(setting.phi_norm),
    )
    bound = terms.total + gap / 4
    return PaperPlan(members, images, samples, bound - terms.epsilon_3 + as_written, bound)
