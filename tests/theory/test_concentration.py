"""The terms of Theorem 2 against 120-digit arithmetic, and Lemma 10 against simulation."""

from collections.abc import Callable
from decimal import Decimal

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from sween.errors import BadInput
from sween.seeding import numpy_generator
from sween.theory import (
    epsilon_1,
    epsilon_2,
    epsilon_3,
    fewest_members_for_lemma_3,
    mean_deviation_bound,
)

Floats = npt.NDArray[np.float64]
REPETITIONS = 20_000


def close(value: Decimal, reference: "mpmath.mpf") -> bool:
    with mpmath.workdps(120):
        return bool(abs(mpmath.mpf(str(value)) / reference - 1) < mpmath.mpf(10) ** -100)


def test_each_term_is_the_formula_of_its_lemma() -> None:
    with mpmath.workdps(120):
        m = mpmath.mpf
        eta, lipschitz, norm, beta = m("0.05"), m("1.5"), m("2.25"), m("0.7")
        log, sqrt = mpmath.log, mpmath.sqrt
        first = lipschitz * (1 + sqrt(2 * log(3 * 7 * 900 / eta))) / sqrt(m(64))
        second = (2 * beta * lipschitz * 10 * 7 + sqrt(8 * log(12 / eta))) / sqrt(m(900))
        third = (
            2 * lipschitz * sqrt(norm) * (m(10) / 7) ** m("0.25") * sqrt(1 + sqrt(2 * log(3 / eta)))
        )
        tenth = (1 + sqrt(2 * log(1 / eta))) / sqrt(m(64))
    assert close(epsilon_1(members=7, images=900, samples=64, eta=0.05, lipschitz=1.5), first)
    assert close(
        epsilon_2(members=7, images=900, eta=0.05, lipschitz=1.5, num_classes=10, beta=0.7), second
    )
    assert close(
        epsilon_3(members=7, eta=0.05, lipschitz=1.5, num_classes=10, phi_norm=2.25), third
    )
    assert close(mean_deviation_bound(64, 0.05), tenth)


def test_terms_are_exact_far_beyond_a_float() -> None:
    """One more image among 1e60 lowers epsilon_2, which a float could not show."""
    size = 10**60

    def term(images: int) -> Decimal:
        return epsilon_2(
            members=10**25, images=images, eta=0.01, lipschitz=1, num_classes=10, beta=1
        )

    assert term(size + 1) < term(size) < term(size - 1)
    assert float(term(size + 1)) == float(term(size))


def test_fewest_members_for_lemma_3() -> None:
    # 10 * 4 * (1 + sqrt(2 log 60))^2 = 596.47...
    assert fewest_members_for_lemma_3(eta=0.05, num_classes=10, phi_norm=2) == 597


def _dirichlet(concentration: float) -> Callable[[np.random.Generator, int], Floats]:
    """Means of s flat or spiky Dirichlet draws, as distance from their expectation."""

    def distances(generator: np.random.Generator, s: int) -> Floats:
        points = generator.dirichlet([concentration] * 4, size=(REPETITIONS, s))
        return np.asarray(np.linalg.norm(points.mean(axis=1) - 0.25, axis=1))

    return distances


def _vertices(probabilities: list[float]) -> Callable[[np.random.Generator, int], Floats]:
    """The widest spread there is: every draw is a corner."""

    def distances(generator: np.random.Generator, s: int) -> Floats:
        means = generator.multinomial(s, probabilities, size=REPETITIONS) / s
        return np.asarray(np.linalg.norm(means - np.array(probabilities), axis=1))

    return distances


def _mixture(generator: np.random.Generator, s: int) -> Floats:
    """A confident network that is now and then confidently wrong: a corner or a Dirichlet draw."""
    soft = generator.dirichlet([0.5, 1.0, 3.0], size=(REPETITIONS, s))
    hard = generator.random((REPETITIONS, s, 1)) < 0.7
    points = np.where(hard, np.array([1.0, 0.0, 0.0]), soft)
    centre = 0.7 * np.array([1.0, 0.0, 0.0]) + 0.3 * np.array([0.5, 1.0, 3.0]) / 4.5
    return np.asarray(np.linalg.norm(points.mean(axis=1) - centre, axis=1))


DISTRIBUTIONS = {
    "dirichlet-flat": _dirichlet(1.0),
    "dirichlet-spiky": _dirichlet(0.1),
    "vertices-even": _vertices([0.1] * 10),
    "vertices-two": _vertices([0.5, 0.5]),
    "vertices-rare": _vertices([0.97, 0.03]),
    "mixture": _mixture,
}


@pytest.mark.parametrize("s", [1, 5, 40])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_lemma_10_holds_in_simulation(name: str, s: int) -> None:
    distances = DISTRIBUTIONS[name](numpy_generator(0, f"lemma-10-{name}", s), s)
    for eta in (0.9, 0.5, 0.05):
        failures = float((distances > float(mean_deviation_bound(s, eta))).mean())
        assert failures <= eta + 4 * np.sqrt(eta * (1 - eta) / REPETITIONS)


def test_the_simulation_would_notice_a_bound_that_is_too_small() -> None:
    distances = DISTRIBUTIONS["vertices-even"](numpy_generator(0, "lemma-10-teeth"), 40)
    assert (distances > float(mean_deviation_bound(40, 0.05)) / 4).mean() > 0.05


@pytest.mark.parametrize(("s", "eta"), [(0, 0.1), (-3, 0.1), (5, 0.0), (5, 1.0), (5, float("nan"))])
def test_refuses_impossible_arguments(s: int, eta: float) -> None:
    with pytest.raises(BadInput, match="expected"):
        mean_deviation_bound(s, eta)
