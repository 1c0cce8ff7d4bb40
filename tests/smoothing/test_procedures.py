"""Seeded miscoverage of whole procedures: pilots, sizes and looks by the code that certifies.

Votes come from tables instead of networks: `Urns` replaces the vote engine, so that 20,000 images
take seconds. The same key gives the same votes, so a procedure that reuses its pilot is caught.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import special

from sween.bounds import decision
from sween.bounds.anytime import STEP
from sween.engine.engine import VoteEngine
from sween.engine.votes import VoteRequest, Votes
from sween.records import ABSTAIN, Certificate
from sween.sampling.settings import CertifySettings
from sween.seeding import numpy_generator
from sween.smoothing import pipeline
from tests.smoothing.known import most_failures
from tests.smoothing.small import Batch

RUNS, ALPHA, LARGEST = 20_000, 0.05, 2_000

BLANK = Batch(torch.zeros(RUNS, 1))

PROBABILITIES = {
    "two equal": [0.5, 0.5],
    "three equal": [1 / 3, 1 / 3, 1 / 3],
    "at the radius that is asked for": [float(special.ndtr(0.5)), 1 - float(special.ndtr(0.5))],
}

MODES: dict[str, dict[str, Any]] = {
    "fixed": {"n0": STEP, "n": 1_000},
    "two-class": {"n0": STEP, "n": 1_000, "bound": "two-class"},
    "decide": {"n0": STEP, "n": LARGEST, "sampling": "decide", "radii": (0.5,)},
    "tolerance": {"n0": STEP, "n": LARGEST, "sampling": "tolerance", "tolerance": 0.05},
    "budget": {"n0": STEP, "n": LARGEST, "sampling": "budget", "budget": 1_000 * RUNS},
}


@functools.cache
def _totals(name: str, purpose: str) -> np.ndarray:
    """(images, blocks + 1, classes): votes in all the blocks before."""
    shape = (RUNS, LARGEST // STEP)
    generator = numpy_generator(0, f"urn {name} {purpose}")
    blocks = generator.multinomial(STEP, PROBABILITIES[name], shape)
    return np.concatenate([np.zeros_like(blocks[:, :1]), blocks.cumsum(axis=1)], axis=1)


class Urns:
    """Draws whole noise blocks of votes; each (purpose, image, block) has its own, as noise has."""

    sigma, compiled, batch_blocks = 1.0, False, 20_000
    precision, forward_rows, noise = "urn", STEP, SimpleNamespace(name="urn", check=lambda _: None)
    name, voters, exits = "urn", ("urn",), MappingProxyType({"urn": "none"})
    device = torch.device("cpu")

    def __init__(self, name: str, *, shared: bool = False) -> None:
        self.p = np.asarray(PROBABILITIES[name])
        self.totals = {
            purpose: _totals(name, "selection" if shared else purpose)
            for purpose in ("selection", "estimation")
        }

    def images_together(self, n: int) -> int:
        return RUNS

    def place(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def count(self, sets: Iterable[VoteRequest], **_: object) -> Iterator[Votes]:
        for asked in sets:
            n = np.asarray(asked.sizes)
            start, blocks = np.asarray(asked.first or [0] * len(n)), n // STEP
            assert (n % STEP == 0).all()
            totals, rows = self.totals[asked.purpose], np.asarray(asked.examples)
            counts = torch.from_numpy(totals[rows, start + blocks] - totals[rows, start])
            yield Votes(self.voters, counts[None], torch.from_numpy(n)[None], list(asked.sizes))

    def certificates(self, mode: str) -> list[Certificate]:
        settings = CertifySettings(alpha=ALPHA, **MODES[mode])
        engine = cast(VoteEngine, self)
        return [own for (own,) in pipeline.certify([engine], BLANK, range(RUNS), settings)]

    def false_certificates(self, mode: str) -> int:
        """Certificates with a radius beyond the one of Theorem 1 from the true probabilities."""
        best = [np.delete(self.p, k).max() for k in range(len(self.p))]
        truth = (special.ndtri(self.p) - special.ndtri(best)) / 2
        rows = [row for row in self.certificates(mode) if row.prediction != ABSTAIN]
        false = sum(bool(row.radius > truth[row.prediction]) for row in rows)
        beyond = sum(
            claimed and float(radius) > truth[row.prediction] + 1e-12
            for row in rows
            for radius, claimed in (row.decisions or {}).items()
        )
        assert beyond <= false
        return false


@functools.cache  # what one test has computed, the next need not
def remembered(bound: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that computes each value once."""
    known: dict[object, Any] = {}

    def recall(*votes: Any, **settings: Any) -> Any:
        key = (*(np.asarray(own).tobytes() for own in votes), *settings.values())
        if key not in known:
            known[key] = bound(*votes, **settings)
        return known[key]

    return recall


@pytest.fixture(autouse=True)
def _each_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many images have the same votes."""
    for name in ("sequential_miss", "radius_cohen", "radius_two_class", "lower_bound"):
        monkeypatch.setattr(decision, name, remembered(getattr(decision, name)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROBABILITIES)
def test_false_certificates_of_whole_procedures_stay_within_alpha(name: str, mode: str) -> None:
    assert Urns(name).false_certificates(mode) <= most_failures(RUNS, ALPHA)


@pytest.mark.parametrize("mode", ["fixed", "two-class", "tolerance", "budget"])
def test_the_simulation_would_catch_reused_noise(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 4: the bound's first votes are those that chose the class."""
    monkeypatch.setitem(MODES, "fixed", {"n0": STEP, "n": STEP})
    monkeypatch.setitem(MODES, "two-class", {"n0": STEP, "n": STEP, "bound": "two-class"})
    assert Urns("two equal", shared=True).false_certificates(mode) > most_failures(RUNS, ALPHA)


@pytest.mark.slow
def test_the_simulation_would_catch_reused_noise_with_many_looks() -> None:
    """Half of alpha pays for the early looks, so this shows against the honest run."""
    honest = Urns("two equal").false_certificates("decide")
    assert Urns("two equal", shared=True).false_certificates("decide") > 1.3 * honest


@pytest.mark.parametrize("pilot", [(51, 49), (100, 0), (1, 0)])
def test_pilot_votes_choose_the_class_and_nothing_else(pilot: tuple[int, int]) -> None:
    other, fresh = (60, 40), (180, 120)
    fixed = functools.partial(decision.decide, estimation_counts=fresh, alpha=ALPHA, sigma=1.0)
    assert fixed(pilot) == fixed(other)
    decided = functools.partial(
        decision.decide_radii,
        estimation_counts=fresh,
        radii=(0.1,),
        largest=1_000,
        alpha=ALPHA,
        sigma=1.0,
    )
    assert decided(pilot) == decided(other)
