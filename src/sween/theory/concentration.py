"""The error terms of the paper's Theorem 2, one function per lemma.

Theorem 2 compares the risk of the ensemble whose weights were fitted (K members, n images, s noise
samples per image and member) with the best risk of any mixture. Its proof splits the gap into

    2 epsilon_1 + 2 epsilon_2 + epsilon_3 + (distance of phi_0 from the infimum),

each of the first three with probability at least 1 - eta/3. Lemma k is the one labelled lem<k> in
the paper's source; a typeset copy numbers it k + 1, after the lemma of the main text.

Results are `Decimal`, with 400 digits (see `sween.theory.inputs`); they compare exactly with ints
and floats, and `float(...)` gives the usual number.
"""

from decimal import ROUND_FLOOR, Decimal, localcontext

from sween.errors import BadInput
from sween.theory import inputs
from sween.theory.inputs import PRECISE


def deviation_factor(eta: Decimal) -> Decimal:
    """1 + sqrt(2 log(1/eta)): mean plus McDiarmid deviation, in Lemmas 1, 2, 3 and 10."""
    with localcontext(PRECISE):
        return 1 + (-2 * eta.ln()).sqrt()


def mean_deviation_bound(s: int, eta: float) -> Decimal:
    """Lemma 10: how far the mean of s random points of the simplex strays from its expectation.

    With probability at least 1 - eta over s independent draws of any distribution on the simplex,
    the l2 distance is at most this. The 1 bounds the mean distance (a point of the simplex has l2
    norm at most 1), the root is McDiarmid's inequality (one draw moves the mean by at most 2/s).

    Args:
        s: independent draws.
        eta: the probability with which the bound may fail.
    """
    draws = inputs.whole("s", s)
    chance = inputs.failure_probability(eta)
    with localcontext(PRECISE):
        return deviation_factor(chance) / Decimal(draws).sqrt()


def epsilon_1(*, members: int, images: int, samples: int, eta: float, lipschitz: float) -> Decimal:
    """Lemma 10 with a union bound: what s noise samples miss of the smoothed members.

    With probability at least 1 - eta/3 all K n estimated smoothed outputs are within Lemma 10's
    bound at level eta / (3 K n); the loss turns that distance into at most L times it.
    """
    number_of_means = inputs.whole("members", members) * inputs.whole("images", images)
    draws = inputs.whole("samples", samples)
    chance = inputs.failure_probability(eta)
    constant = inputs.lipschitz_constant(lipschitz)
    with localcontext(PRECISE):
        each = chance / (3 * number_of_means)
        return constant * deviation_factor(each) / Decimal(draws).sqrt()


def epsilon_2(
    *, members: int, images: int, eta: float, lipschitz: float, num_classes: int, beta: float
) -> Decimal:
    """Lemma 9 at level eta/3: what n images miss of the risk, for all weights at once.

    The first part is the complexity of the ensembles, the second McDiarmid's inequality for a loss
    with values in [0,1] (log(4/eta) of Lemma 9 becomes log(12/eta)).
    """
    size, count = inputs.whole("members", members), inputs.whole("images", images)
    chance = inputs.failure_probability(eta)
    constant = inputs.lipschitz_constant(lipschitz)
    classes, complexity = inputs.class_count(num_classes), inputs.complexity_constant(beta)
    with localcontext(PRECISE):
        spread = 2 * complexity * constant * classes * size
        return (spread + (8 * (12 / chance).ln()).sqrt()) / Decimal(count).sqrt()


def epsilon_3(
    *, members: int, eta: float, lipschitz: float, num_classes: int, phi_norm: float
) -> Decimal:
    """Lemma 3 at level eta/3: what K members miss of the best mixture phi_0.

    Only proven for K >= M ||phi||_p^2 (1 + sqrt(2 log(3/eta)))^2: see `fewest_members_for_lemma_3`.
    """
    chance = inputs.failure_probability(eta)
    constant = inputs.lipschitz_constant(lipschitz)
    norm, classes = inputs.density_norm(phi_norm), inputs.class_count(num_classes)
    size = inputs.whole("members", members)
    with localcontext(PRECISE):
        return mixture_distance(size, deviation_factor(chance / 3), constant, classes, norm)


def mixture_distance(
    members: int, factor: Decimal, lipschitz: Decimal, num_classes: int, phi_norm: Decimal
) -> Decimal:
    """Lemma 3's bound 2 L sqrt(||phi||_p factor) (M/K)^(1/4) with the deviation factor given."""
    with localcontext(PRECISE):
        ratio = Decimal(num_classes) / members
        return 2 * lipschitz * (phi_norm * factor * ratio.sqrt()).sqrt()


def fewest_members_for_lemma_3(*, eta: float, num_classes: int, phi_norm: float) -> int:
    """The smallest K for which Lemma 3 says anything at level eta/3.

    Below it the weights that Lemma 1 finds may be too far from summing to 1 to be rescaled.
    """
    chance = inputs.failure_probability(eta)
    norm, classes = inputs.density_norm(phi_norm), inputs.class_count(num_classes)
    with localcontext(PRECISE):
        return smallest_integer_above(classes * (norm * deviation_factor(chance / 3)) ** 2)


def smallest_integer_above(threshold: Decimal) -> int:
    """The smallest integer that is strictly larger.

    The thresholds of Theorem 2 hold the root of a logarithm of a rational number other than 1, so
    they are transcendental: never an integer, and "at least" is the same as "more than".
    """
    size = int(threshold.to_integral_value(rounding=ROUND_FLOOR)) + 1
    if size > inputs.LARGEST_SIZE:
        raise BadInput(
            "the size Theorem 2 asks for",
            expected="at most 1e300",
            got=f"about {threshold:.1e}",
            fix="raise epsilon, or lower lipschitz, phi_norm or beta",
        )
    return size
