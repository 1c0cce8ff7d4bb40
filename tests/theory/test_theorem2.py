"""Theorem 2 against 400-digit arithmetic written out once more, and Lemma 10 against simulation."""

import math
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, TypedDict

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.seeding import numpy_generator
from sween.theory import achieved_epsilon, expected_radius, required_sizes
from sween.theory.theorem2 import PRECISE, deviation_factor

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
OPTIONS = "--eta 0.05 --lipschitz 1 --classes 10 --phi-norm 2 --beta 1"


class Given(TypedDict):
    """What Theorem 2 takes as given."""

    eta: float
    lipschitz: float
    num_classes: int
    phi_norm: float
    beta: float


EXAMPLE = Given(eta=0.05, lipschitz=1, num_classes=10, phi_norm=2, beta=1)
CASES = [
    (0.1, EXAMPLE),
    (0.01, Given(eta=0.001, lipschitz=2.5, num_classes=1000, phi_norm=7.25, beta=2.51)),
    (1e-9, Given(eta=1e-6, lipschitz=0.3, num_classes=2, phi_norm=1, beta=0.01)),
    (3.0, EXAMPLE),
    (1e3, Given(eta=0.9, lipschitz=0.001, num_classes=3, phi_norm=1.5, beta=3)),
]
FEWEST = 597  # 10 * 4 * (1 + sqrt(2 log 60))^2 = 596.47...


def exact(setting: Given) -> tuple["mpmath.mpf", ...]:
    """eta, L, M, ||phi|| and beta as they were written."""
    return tuple(mpmath.mpf(repr(value)) for value in setting.values())


def thresholds(
    epsilon: float, setting: Given, *, constant: int, share: int, members: int, images: int
) -> list["mpmath.mpf"]:
    """The right-hand sides of Theorem 2's inequalities for K, for Lemma 3, for n and for s."""
    m, log, sqrt = mpmath.mpf, mpmath.log, mpmath.sqrt
    gap, (eta, lipschitz, classes, norm, beta) = m(repr(epsilon)), exact(setting)
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
    paper = need.paper
    assert paper is not None
    with mpmath.workdps(400):
        for_members, for_lemma_3, for_images, for_samples = thresholds(
            epsilon, setting, constant=4096, share=3, members=need.members, images=need.images
        )
        assert need.members > max(for_members, for_lemma_3) >= need.members - 1
        assert need.images > for_images >= need.images - 1
        assert need.samples > for_samples >= need.samples - 1
        for_members, _, for_images, for_samples = thresholds(
            epsilon, setting, constant=256, share=1, members=paper.members, images=paper.images
        )
        assert paper.members > for_members >= paper.members - 1
        assert paper.images > for_images >= paper.images - 1
        assert paper.samples > for_samples >= paper.samples - 1


@pytest.mark.parametrize(("epsilon", "setting"), CASES)
def test_terms_are_those_of_the_lemmas_and_sum_to_less_than_epsilon(
    epsilon: float, setting: Given
) -> None:
    need = required_sizes(epsilon=epsilon, **setting)
    with mpmath.workdps(400):
        log, sqrt, gap = mpmath.log, mpmath.sqrt, mpmath.mpf(repr(epsilon))
        eta, lipschitz, classes, norm, beta = exact(setting)
        means = 3 * mpmath.mpf(need.members) * need.images
        lemmas = (
            lipschitz * (1 + sqrt(2 * log(means / eta))) / sqrt(need.samples),
            (2 * beta * lipschitz * classes * need.members + sqrt(8 * log(12 / eta)))
            / sqrt(need.images),
            2 * lipschitz * sqrt(norm) * (classes / need.members) ** mpmath.mpf("0.25")
            * sqrt(1 + sqrt(2 * log(3 / eta))),
        )  # fmt: skip
        terms = [mpmath.mpf(str(term)) for term in need.terms]
        for term, lemma, share in zip(terms, lemmas, (8, 8, 4), strict=False):
            assert abs(term / lemma - 1) < mpmath.mpf(10) ** -390
            assert term < gap / share
        total = 2 * terms[0] + 2 * terms[1] + terms[2]
        assert abs(total / terms[3] - 1) < mpmath.mpf(10) ** -390
        assert abs((total + gap / 4) / mpmath.mpf(str(need.bound)) - 1) < mpmath.mpf(10) ** -390
        assert total + gap / 4 < gap


@pytest.mark.parametrize(("epsilon", "setting"), CASES)
def test_required_sizes_achieve_their_epsilon(epsilon: float, setting: Given) -> None:
    need = required_sizes(epsilon=epsilon, **setting)
    back = achieved_epsilon(
        members=need.members, images=need.images, samples=need.samples, **setting
    )
    assert back.terms == need.terms
    with localcontext(PRECISE):
        assert back.epsilon == 4 * back.terms.total / 3 <= need.epsilon
        assert back.bound == back.epsilon


def test_the_papers_constant_gives_five_quarters_of_epsilon() -> None:
    need = required_sizes(epsilon=0.1, **EXAMPLE)
    assert need.paper is not None
    assert "0.125 = 1.25 epsilon;" in str(need)
    # At level eta/3, eps3 is larger by the root of the ratio of the two deviation factors.
    ratio = math.sqrt((1 + math.sqrt(2 * math.log(60))) / (1 + math.sqrt(2 * math.log(20))))
    assert math.isclose(float(need.paper.bound) / 0.1, 0.75 + 0.5 * ratio, rel_tol=1e-6)


def test_too_few_members_guarantee_nothing() -> None:
    sizes = {"images": 10**30, "samples": 10**9}
    below = achieved_epsilon(members=FEWEST - 1, **sizes, **EXAMPLE)
    enough = achieved_epsilon(members=FEWEST, **sizes, **EXAMPLE)
    assert below.fewest_members == enough.fewest_members == FEWEST
    assert below.epsilon == math.inf
    assert enough.epsilon < 10


def test_a_vacuous_bound_is_called_so() -> None:
    def gap(members: int, images: int, samples: int) -> str:
        sizes = {"members": members, "images": images, "samples": samples}
        return str(achieved_epsilon(**sizes, **EXAMPLE))

    assert "vacuous" in gap(700, 2000, 100)
    assert "vacuous" not in gap(10**9, 10**30, 10**8)
    assert "vacuous" in str(required_sizes(epsilon=2.0, **EXAMPLE))
    assert "vacuous" not in str(required_sizes(epsilon=0.5, **EXAMPLE))


def test_one_more_image_among_very_many_counts() -> None:
    """Which a float could not show."""

    def term(images: int) -> Decimal:
        return achieved_epsilon(members=10**25, images=images, samples=1, **EXAMPLE).terms.epsilon_2

    size = 10**60
    assert term(size + 1) < term(size) < term(size - 1)
    assert float(term(size + 1)) == float(term(size))


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(1, 50), st.floats(1e-6, 0.99))
def test_harder_problems_need_more(
    epsilon: float, lipschitz: float, phi_norm: float, eta: float
) -> None:
    def need(**harder: float) -> tuple[int, int, int]:
        easy = {"epsilon": epsilon, "lipschitz": lipschitz, "phi_norm": phi_norm}
        found = required_sizes(**(easy | harder), eta=eta, num_classes=10, beta=1.0)
        return found.members, found.images, found.samples

    base = need()
    harder = need(epsilon=epsilon / 2), need(lipschitz=2 * lipschitz), need(phi_norm=2 * phi_norm)
    for other in harder:
        assert all(mine <= theirs for mine, theirs in zip(base, other, strict=True))


def test_the_remarks_of_the_docs_on_the_loose_steps() -> None:
    """1.7e6 members by the triangle inequality, 8.6e7 images by the largest of K Gaussians."""
    factor = 1 + math.sqrt(2 * math.log(3 / 0.05))
    members = math.floor((4 * 2 * (1 + math.sqrt(10)) * factor / 0.1) ** 2) + 1
    spread = 2 * 10 * math.sqrt(2 * math.log(2 * members)) + math.sqrt(8 * math.log(12 / 0.05))
    images = math.floor((8 * spread / 0.1) ** 2) + 1
    assert (f"{members:.1e}", f"{images:.1e}") == ("1.7e+06", "8.6e+07")


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (f"--epsilon 0.1 {OPTIONS}", required_sizes(epsilon=0.1, **EXAMPLE)),
        (
            f"--members 3 --images 2000 --samples 100 {OPTIONS}",
            achieved_epsilon(members=3, images=2000, samples=100, **EXAMPLE),
        ),
        (
            "--p 0.9 --n 100000 --alpha 0.001 --sigma 0.5",
            expected_radius(0.9, 100_000, alpha=0.001, sigma=0.5),
        ),
    ],
)
def test_the_docs_show_what_is_printed(command: str, printed: object) -> None:
    shown = f"    sween plan {command}\n\n```text\n{printed}\n```\n"
    assert shown in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("epsilon", value) for value in (0.0, -1.0, math.inf, math.nan)],
        *[("eta", value) for value in (0.0, 1.0, math.nan)],
        *[("lipschitz", 0.0), ("phi_norm", 0.99), ("beta", 0.0), ("beta", "1")],
        *[("num_classes", value) for value in (1, 2.5, True)],
    ],
)
def test_refuses_impossible_arguments(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"epsilon": 0.1, **EXAMPLE, name: value}
    with pytest.raises(BadInput, match=rf"^{name}: expected .*, got {value}; "):
        required_sizes(**arguments)
    with pytest.raises(BadInput, match="raise epsilon"):  # sizes beyond its digits
        required_sizes(epsilon=1e-60, **EXAMPLE)


@pytest.mark.parametrize("name", ["members", "images", "samples"])
@pytest.mark.parametrize("value", [0, 2.0, False, 10**301])
def test_refuses_impossible_sizes(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"members": 3, "images": 5, "samples": 7, **EXAMPLE, name: value}
    with pytest.raises(BadInput, match=rf"^{name}: expected a whole number"):
        achieved_epsilon(**arguments)


Floats = np.ndarray[Any, np.dtype[np.float64]]
REPETITIONS = 20_000


def distances(name: str, generator: np.random.Generator, s: int) -> Floats:
    """How far the means of s draws on a simplex are from their expectation."""
    shape = (REPETITIONS, s)
    if name.startswith("corners"):  # the widest spread there is
        centre = {"even": [0.1] * 10, "two": [0.5, 0.5], "rare": [0.97, 0.03]}[name[8:]]
        means = generator.multinomial(s, centre, size=REPETITIONS) / s
    elif name.startswith("dirichlet"):
        centre = [0.25] * 4
        means = generator.dirichlet([float(name[10:])] * 4, size=shape).mean(axis=1)
    else:  # a confident network that is now and then confidently wrong
        centre = [0.7 + 0.3 * 0.5 / 4.5, 0.3 * 1.0 / 4.5, 0.3 * 3.0 / 4.5]
        soft = generator.dirichlet([0.5, 1.0, 3.0], size=shape)
        hard = generator.random((*shape, 1)) < 0.7
        means = np.where(hard, np.array([1.0, 0.0, 0.0]), soft).mean(axis=1)
    return np.asarray(np.linalg.norm(means - np.array(centre), axis=1))


@pytest.mark.parametrize("s", [1, 5, 40])
@pytest.mark.parametrize(
    "name",
    ["corners-even", "corners-two", "corners-rare", "dirichlet-1.0", "dirichlet-0.1", "mixture"],
)
def test_lemma_10_holds_in_simulation(name: str, s: int) -> None:
    found = distances(name, numpy_generator(0, f"lemma-10-{name}", s), s)
    for eta in (0.9, 0.5, 0.05):
        bound = float(deviation_factor(Decimal(repr(eta)))) / math.sqrt(s)
        assert (found > bound).mean() <= eta + 4 * math.sqrt(eta * (1 - eta) / REPETITIONS)


def test_the_simulation_would_notice_a_bound_that_is_too_small() -> None:
    found = distances("corners-even", numpy_generator(0, "lemma-10-teeth"), 40)
    bound = float(deviation_factor(Decimal("0.05"))) / math.sqrt(40)
    assert (found > bound / 4).mean() > 0.05
