"""Theorem 2 in both directions: smallest sizes, sums, the paper's constants, refusals."""

import math
from typing import TypedDict

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.theory import Requirement, achieved_epsilon, fewest_members_for_lemma_3, required_sizes


class Given(TypedDict):
    """What Theorem 2 takes as given."""

    eta: float
    lipschitz: float
    num_classes: int
    phi_norm: float
    beta: float


class Sizes(TypedDict):
    """What it is about."""

    members: int
    images: int
    samples: int


EXAMPLE = Given(eta=0.05, lipschitz=1, num_classes=10, phi_norm=2, beta=1)
CASES = [
    (0.1, EXAMPLE),
    (0.01, Given(eta=0.001, lipschitz=2.5, num_classes=1000, phi_norm=7.25, beta=2.51)),
    (1e-9, Given(eta=1e-6, lipschitz=0.3, num_classes=2, phi_norm=1, beta=0.01)),
    (3.0, EXAMPLE),
    (1e3, Given(eta=0.9, lipschitz=0.001, num_classes=3, phi_norm=1.5, beta=3)),
]


def sizes(requirement: Requirement) -> Sizes:
    return Sizes(
        members=requirement.members, images=requirement.images, samples=requirement.samples
    )


def thresholds(
    epsilon: float, setting: Given, *, constant: int, share: int, members: int, images: int
) -> list["mpmath.mpf"]:
    """The right-hand sides of Theorem 2's inequalities in 400 digits, written out once more."""
    m, log, sqrt = mpmath.mpf, mpmath.log, mpmath.sqrt
    gap, eta = m(repr(epsilon)), m(repr(setting["eta"]))
    lipschitz, beta = m(repr(setting["lipschitz"])), m(repr(setting["beta"]))
    norm, classes = m(repr(setting["phi_norm"])), setting["num_classes"]
    square = (1 + sqrt(2 * log(share / eta))) ** 2
    spread = 2 * beta * lipschitz * classes * members + sqrt(8 * log(12 / eta))
    return [
        constant * lipschitz**4 * norm**2 * classes * square / gap**4,
        classes * norm**2 * square,
        64 * spread**2 / gap**2,
        64 * lipschitz**2 * (1 + sqrt(2 * log(3 * m(members) * images / eta))) ** 2 / gap**2,
    ]


@pytest.mark.parametrize(("epsilon", "setting"), CASES)
def test_sizes_satisfy_the_inequalities_and_one_less_does_not(
    epsilon: float, setting: Given
) -> None:
    need = required_sizes(epsilon=epsilon, **setting)
    with mpmath.workdps(400):
        for_members, for_lemma_3, for_images, for_samples = thresholds(
            epsilon, setting, constant=4096, share=3, members=need.members, images=need.images
        )
        assert need.members > for_members
        assert need.members >= for_lemma_3
        assert need.members - 1 <= for_members or need.members - 1 < for_lemma_3
        assert need.images > for_images >= need.images - 1
        assert need.samples > for_samples >= need.samples - 1


@pytest.mark.parametrize(("epsilon", "setting"), CASES)
def test_the_sum_stays_below_epsilon_in_exact_arithmetic(epsilon: float, setting: Given) -> None:
    need = required_sizes(epsilon=epsilon, **setting)
    with mpmath.workdps(400):
        gap = mpmath.mpf(repr(epsilon))
        first, second, third = (
            mpmath.mpf(str(term))
            for term in (need.terms.epsilon_1, need.terms.epsilon_2, need.terms.epsilon_3)
        )
        assert 2 * first < gap / 4
        assert 2 * second < gap / 4
        assert third < gap / 4
        total = 2 * first + 2 * second + third + gap / 4
        assert total < gap
        assert abs(total - mpmath.mpf(str(need.bound))) < gap * mpmath.mpf(10) ** -390
    assert need.margin > 0


@pytest.mark.parametrize(("epsilon", "setting"), CASES)
def test_round_trip(epsilon: float, setting: Given) -> None:
    """Sizes asked for epsilon achieve it, and at least one part is used up to its quarter."""
    need = required_sizes(epsilon=epsilon, **setting)
    back = achieved_epsilon(**sizes(need), **setting)
    assert back.lemma_3_applies
    assert back.epsilon is not None
    assert back.epsilon_if_attained is not None
    assert back.terms == need.terms
    with mpmath.workdps(400):
        assert mpmath.mpf(str(back.epsilon)) <= mpmath.mpf(repr(epsilon))
    assert back.epsilon_if_attained < back.epsilon


def test_the_example_of_the_docs() -> None:
    need = required_sizes(epsilon=0.1, **EXAMPLE)
    assert need.members == 24_431_601_677
    assert math.isclose(need.images, 1.528e27, rel_tol=1e-3)
    assert need.samples == 1_338_482


def test_the_papers_constant_gives_five_quarters_of_epsilon() -> None:
    paper = required_sizes(epsilon=0.1, **EXAMPLE).paper
    # 2 eps1 + 2 eps2 + epsilon/4 is 3/4 epsilon, and eps3 with 256 is epsilon/2.
    assert 1.249999 < float(paper.bound_as_written) / 0.1 < 1.25
    # At level eta/3, eps3 is larger by the root of the ratio of the two deviation factors.
    ratio = math.sqrt((1 + math.sqrt(2 * math.log(60))) / (1 + math.sqrt(2 * math.log(20))))
    assert math.isclose(float(paper.bound) / 0.1, 0.75 + 0.5 * ratio, rel_tol=1e-6)


@pytest.mark.parametrize(("epsilon", "setting"), CASES)
def test_the_papers_sizes_are_the_smallest_by_its_printed_constants(
    epsilon: float, setting: Given
) -> None:
    paper = required_sizes(epsilon=epsilon, **setting).paper
    with mpmath.workdps(400):
        for_members, _, for_images, for_samples = thresholds(
            epsilon, setting, constant=256, share=1, members=paper.members, images=paper.images
        )
        assert paper.members > for_members >= paper.members - 1
        assert paper.images > for_images >= paper.images - 1
        assert paper.samples > for_samples >= paper.samples - 1
        assert mpmath.mpf(str(paper.bound_as_written)) < mpmath.mpf(repr(epsilon)) * 5 / 4


def test_too_few_members_give_nothing() -> None:
    fewest = fewest_members_for_lemma_3(eta=0.05, num_classes=10, phi_norm=2)
    below = achieved_epsilon(members=fewest - 1, images=2000, samples=100, **EXAMPLE)
    enough = achieved_epsilon(members=fewest, images=2000, samples=100, **EXAMPLE)
    assert not below.lemma_3_applies
    assert below.epsilon is None
    assert below.epsilon_if_attained is None
    assert below.fewest_members == fewest
    assert enough.lemma_3_applies
    assert enough.epsilon is not None
    assert not enough.says_something


def test_a_gap_below_one_says_something() -> None:
    assert achieved_epsilon(members=10**9, images=10**30, samples=10**8, **EXAMPLE).says_something


def test_four_thirds_solves_the_sum() -> None:
    result = achieved_epsilon(members=10**6, images=10**20, samples=10**6, **EXAMPLE)
    assert result.epsilon is not None
    assert result.epsilon_if_attained == result.terms.total
    assert math.isclose(float(result.terms.total) + float(result.epsilon) / 4, result.epsilon)


def test_the_remarks_of_the_docs_on_the_loose_steps() -> None:
    """1.7e6 members by the triangle inequality, 8.6e7 images by the largest of K Gaussians."""
    factor = 1 + math.sqrt(2 * math.log(3 / 0.05))
    members = math.floor((4 * 2 * (1 + math.sqrt(10)) * factor / 0.1) ** 2) + 1
    spread = 2 * 10 * math.sqrt(2 * math.log(2 * members)) + math.sqrt(8 * math.log(12 / 0.05))
    images = math.floor((8 * spread / 0.1) ** 2) + 1
    assert f"{members:.1e}" == "1.7e+06"
    assert f"{images:.1e}" == "8.6e+07"


positive = st.floats(0.01, 10)


@settings(max_examples=40, deadline=None)
@given(epsilon=positive, lipschitz=positive, phi_norm=st.floats(1, 50), eta=st.floats(1e-6, 0.99))
def test_easier_problems_ask_for_less(
    epsilon: float, lipschitz: float, phi_norm: float, eta: float
) -> None:
    def need(
        *, epsilon: float = epsilon, lipschitz: float = lipschitz, phi_norm: float = phi_norm
    ) -> tuple[int, int, int]:
        found = required_sizes(
            epsilon=epsilon,
            eta=eta,
            lipschitz=lipschitz,
            num_classes=10,
            phi_norm=phi_norm,
            beta=1.0,
        )
        return found.members, found.images, found.samples

    base = need()
    harder = [
        need(epsilon=epsilon / 2),
        need(lipschitz=lipschitz * 2),
        need(phi_norm=phi_norm * 2),
    ]
    for other in harder:
        assert all(mine <= theirs for mine, theirs in zip(base, other, strict=True))


@settings(max_examples=40, deadline=None)
@given(images=st.integers(1, 10**30), samples=st.integers(1, 10**12), eta=st.floats(1e-6, 0.5))
def test_more_images_shrink_the_image_term_and_more_samples_the_gap(
    images: int, samples: int, eta: float
) -> None:
    setting = Given(eta=eta, lipschitz=1, num_classes=10, phi_norm=1, beta=1)
    members = fewest_members_for_lemma_3(eta=eta, num_classes=10, phi_norm=1)
    base = achieved_epsilon(members=members, images=images, samples=samples, **setting)
    more_images = achieved_epsilon(members=members, images=2 * images, samples=samples, **setting)
    more_samples = achieved_epsilon(members=members, images=images, samples=2 * samples, **setting)
    assert more_images.terms.epsilon_2 < base.terms.epsilon_2
    # More images are more means to estimate, so the union bound of epsilon_1 costs a little.
    assert more_images.terms.epsilon_1 > base.terms.epsilon_1
    assert base.epsilon is not None
    assert more_samples.epsilon is not None
    assert more_samples.epsilon < base.epsilon


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.inf),
        ("epsilon", math.nan),
        ("eta", 0.0),
        ("eta", 1.0),
        ("lipschitz", 0.0),
        ("num_classes", 1),
        ("num_classes", 2.5),
        ("num_classes", True),
        ("phi_norm", 0.99),
        ("beta", 0.0),
        ("beta", "1"),
    ],
)
def test_refuses_impossible_arguments(name: str, value: object) -> None:
    arguments: dict[str, object] = {"epsilon": 0.1, **EXAMPLE, name: value}
    with pytest.raises(BadInput, match=rf"^{name}: expected .*, got {value}; "):
        required_sizes(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["members", "images", "samples"])
@pytest.mark.parametrize("value", [0, -1, 2.0, False])
def test_refuses_impossible_sizes(name: str, value: object) -> None:
    arguments: dict[str, object] = {"members": 3, "images": 5, "samples": 7, **EXAMPLE, name: value}
    with pytest.raises(BadInput, match=rf"^{name}: expected a whole number"):
        achieved_epsilon(**arguments)  # type: ignore[arg-type]


def test_refuses_sizes_beyond_its_digits() -> None:
    with pytest.raises(BadInput, match="raise epsilon"):
        required_sizes(epsilon=1e-60, **EXAMPLE)
