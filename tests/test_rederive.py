"""How far a recorded radius may lie above the one that the votes give."""

import dataclasses
from typing import Any

import pytest

from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.sampling.rederive import derivation_problems
from sween.sampling.votes import VotePair
from tests.certifying import certify_digits

SETTINGS = CertifySettings(n0=100, n=1_000)


def _with_votes(row: Certificate, votes: int) -> Certificate:
    """The row that follows if so many of the 1,000 votes are for its candidate."""
    counts = [0] * len(row.estimation_counts)
    counts[row.candidate], counts[row.candidate - 1] = votes, 1_000 - votes
    row = dataclasses.replace(row, estimation_counts=tuple(counts))
    ((decision, _),) = SETTINGS.strategy.decide([VotePair.of_row(row)], SETTINGS, row.sigma)
    fields: dict[str, Any] = dataclasses.asdict(decision)
    return dataclasses.replace(row, **fields)


@pytest.fixture(scope="module")
def any_row(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return next(iter(certify_digits(tmp_path_factory.mktemp("run"), SETTINGS, 1)))


@pytest.mark.parametrize(("more", "accepted"), [(0.9e-13, True), (2e-13, False), (1e-9, False)])
def test_a_radius_near_zero_may_differ_by_rounding_relative_to_sigma(
    any_row: Certificate, more: float, accepted: bool
) -> None:
    """As other versions of SciPy round the probability that it comes from."""
    row = _with_votes(any_row, 552)
    assert 0 < row.radius < 0.01
    assert derivation_problems([row], SETTINGS, row.sigma) == [[]]
    radius = row.radius + more * row.sigma
    other = dataclasses.replace(row, radius=radius, radius_cohen=radius)
    (problems,) = derivation_problems([other], SETTINGS, row.sigma)
    assert (not problems) == accepted


def test_an_abstention_has_no_radius_at_all(any_row: Certificate) -> None:
    row = _with_votes(any_row, 500)
    assert derivation_problems([row], SETTINGS, row.sigma) == [[]]
    other = dataclasses.replace(row, radius=1e-14)
    assert derivation_problems([other], SETTINGS, row.sigma) == [
        ["radius is 1e-14, the votes give 0.0"]
    ]
