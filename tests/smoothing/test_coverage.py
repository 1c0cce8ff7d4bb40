"""Seeded miscoverage: false certificates and predictions stay within alpha."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special

from sween.bounds.decision import decide_each, decide_prediction
from sween.bounds.radius import radius_cohen
from sween.records import ABSTAIN
from sween.seeding import numpy_generator
from tests.smoothing.known import most_failures

RUNS = 20_000
ALPHA = 0.05
N0, N = 100, 1_000

PROBABILITIES = {
    "two equal": [0.5, 0.5, 0.0],
    "a hair apart": [0.501, 0.499, 0.0],
    "three equal": [1 / 3, 1 / 3, 1 / 3],
    "a clear lead": [0.7, 0.2, 0.1],
    "a near runner-up": [0.4, 0.35, 0.25],
    "nearly sure": [0.995, 0.004, 0.001],
    "a fine lead": [0.6, 0.05, 0.35],
    "a rare runner-up": [0.35, 0.004, *[0.001] * 646],
}
"""The last isolates the runner-up: the rest is spread so thin that pB is far below 1 - pA."""

Counts = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


def _truth(p: Probabilities, candidate: int) -> float:
    """The radius of Theorem 1 from the true probabilities; below 0 for another class."""
    rival = np.delete(p, candidate).max()
    return float((special.ndtri(p[candidate]) - special.ndtri(rival)) / 2)


def _false_certificates(p: Probabilities, bound: str, selection: Counts, estimation: Counts) -> int:
    truths = [_truth(p, candidate) for candidate in range(len(p))]
    drawn = estimation.sum(axis=1).tolist()
    decisions = decide_each(
        selection.tolist(), estimation.tolist(), drawn, alpha=ALPHA, sigma=1.0, bound=bound
    )
    certified = [own for own in decisions if own.prediction != ABSTAIN]
    return sum(own.radius > truths[own.prediction] for own in certified)


@pytest.mark.parametrize("bound", ["cohen", "two-class"])
@pytest.mark.parametrize("name", PROBABILITIES)
def test_false_certificates_stay_within_alpha(name: str, bound: str) -> None:
    p = np.asarray(PROBABILITIES[name])
    generator = numpy_generator(0, f"coverage {name} {bound}")
    selection = generator.multinomial(N0, p, RUNS)
    estimation = generator.multinomial(N, p, RUNS)
    assert _false_certificates(p, bound, selection, estimation) <= most_failures(RUNS, ALPHA)


def test_the_simulation_would_catch_a_shared_pilot() -> None:
    """Trap 4: with the pilot's votes in the bound, false certificates exceed alpha."""
    p = np.asarray(PROBABILITIES["two equal"])
    generator = numpy_generator(0, "shared pilot")
    votes = generator.multinomial(N0, p, RUNS)
    assert _false_certificates(p, "cohen", votes, votes) > most_failures(RUNS, ALPHA)


@pytest.mark.slow
def test_the_simulation_would_catch_repeated_looks() -> None:
    """Trap 5: stopping at the first of many looks that certifies is not covered by alpha."""
    generator = numpy_generator(0, "repeated looks")
    seen = generator.binomial(100, 0.5, (RUNS, 50)).cumsum(axis=1)
    radii = radius_cohen(seen, 100 * np.arange(1, 51), alpha=ALPHA, sigma=1.0)
    assert int((radii > 0).any(axis=1).sum()) > most_failures(RUNS, ALPHA)


@pytest.mark.parametrize("name", PROBABILITIES)
@pytest.mark.parametrize("n", [20, 100])
def test_false_predictions_stay_within_alpha(name: str, n: int) -> None:
    p = np.asarray(PROBABILITIES[name])
    generator = numpy_generator(0, f"predict {name} {n}")
    votes, repeats = np.unique(generator.multinomial(n, p, RUNS), axis=0, return_counts=True)
    right = set(np.flatnonzero(p == p.max()).tolist()) if p.max() > np.sort(p)[-2] else set()
    false = 0
    for counts, times in zip(votes.tolist(), repeats.tolist(), strict=True):
        answer, _ = decide_prediction(counts, alpha=ALPHA)
        if answer != ABSTAIN and answer not in right:
            false += times
    assert false <= most_failures(RUNS, ALPHA)
