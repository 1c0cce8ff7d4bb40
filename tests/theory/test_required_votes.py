"""The votes that a radius takes, against counting through and the binomial distribution."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sween.bounds import radius_cohen
from sween.theory import required_votes
from sween.theory.required_votes import CHANCE, RequiredVotes
from tests.cli.command import succeed

ALPHA = 0.001
PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def required(
    radius: float, *, n: int = 1000, sigma: float = 0.5, p: float | None = None
) -> RequiredVotes:
    return required_votes(radius, n=n, alpha=ALPHA, sigma=sigma, p=p)


@pytest.mark.parametrize("sigma", [0.12, 0.5, 1.0])
@pytest.mark.parametrize("radius", [0.01, 0.3, 0.5, 1.2])
def test_one_vote_fewer_does_not_certify(radius: float, sigma: float) -> None:
    found = required(radius, n=317, sigma=sigma)
    for size in found.sizes:
        if size.n <= 1000:
            radii = radius_cohen(np.arange(size.n + 1), size.n, alpha=ALPHA, sigma=sigma)
            enough = np.flatnonzero(radii >= radius)
            assert size.votes == (enough[0] if enough.size else None)
            assert size.largest == radii[-1]
        if size.votes is not None and size.probability is not None:
            chance = stats.binom.sf(size.votes - 1, size.n, size.probability)
            assert chance == pytest.approx(CHANCE)
            assert size.probability > 1 - found.miss


def test_the_fewest_votes() -> None:
    for radius in (0.1, 0.5, 1.0, 1.9):
        fewest = required(radius).fewest
        assert fewest is not None
        counts = np.array([fewest - 1, fewest])
        below, enough = radius_cohen(counts, counts, alpha=ALPHA, sigma=0.5)
        assert below < radius <= enough
    assert required(3.5).fewest is None


def test_the_votes_that_a_probability_takes() -> None:
    found = required(0.5, p=0.9).n_for_p
    assert found is not None
    for n, is_enough in ((found, True), (found // 2, False)):
        votes = required(0.5, n=n).sizes[[*sorted({100, 1000, 10_000, 100_000, n})].index(n)].votes
        assert votes is not None
        assert (stats.binom.sf(votes - 1, n, 0.9) >= CHANCE - 0.01) == is_enough
    limit = 1 - required(0.5).miss
    assert required(0.5, p=limit).n_for_p is None
    assert required(0.5, p=1.0).n_for_p == required(0.5).fewest


def test_the_table_of_the_page_is_what_the_command_prints() -> None:
    for line in succeed("plan --radius 0.5 --sigma 0.5").splitlines():
        assert line in PAGE.read_text(encoding="utf-8")
    assert "too few" in succeed("plan --radius 1 --n 200")
    assert "no number is enough" in succeed("plan --radius 0.5 --p 0.8")
