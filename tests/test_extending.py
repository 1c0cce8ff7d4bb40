"""A new sampling strategy, or a new bound, is one object in one file."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import sween
from sween.bounds import BOUNDS, Bound, radius_cohen, register_bound
from sween.bounds.binomial import Counts, Floats
from sween.ensemble import EXITS, ExitPolicy
from sween.ensemble.early_exit import ExitRule, Partial, parse_exit
from sween.records import Certificate
from sween.runs import verify_folder
from sween.sampling import SamplingStrategy, register_sampling
from sween.sampling.settings import CertifySettings
from sween.sampling.strategy import (
    STRATEGIES,
    Drawing,
    VoteSource,
    draw_estimation,
    draw_selection,
)
from tests.smoothing.small import ZOO


class Doubled(SamplingStrategy):
    """A toy: twice as many votes for images whose pilot is not unanimous."""

    name = "doubled"

    def draw(self, source: VoteSource) -> Drawing:
        selected = draw_selection(source)
        sizes = [_size(votes[source.model].counts, source.settings) for votes in selected[0]]
        return draw_estimation(source, sizes, selected)

    def problems(self, rows: Sequence[Certificate], settings: CertifySettings) -> list[list[str]]:
        return [
            [] if row.n == _size(row.selection_counts, settings) else [f"n is {row.n}"]
            for row in rows
        ]


def _size(counts: tuple[int, ...], settings: CertifySettings) -> int:
    return settings.n if max(counts) == settings.n0 else 2 * settings.n


def _half(
    count: Counts, runner_up_count: Counts, n: Counts, *, alpha: float, sigma: float
) -> Floats:
    """A toy: half of Cohen's radius, which is still sound."""
    return radius_cohen(count, n, alpha=alpha, sigma=sigma) / 2


@pytest.fixture
def extended() -> Iterator[None]:
    register_sampling(Doubled())
    register_bound(Bound("half", _half))
    yield
    del STRATEGIES["doubled"], BOUNDS["half"]


@pytest.mark.usefixtures("extended")
def test_a_toy_strategy_certifies_and_verifies(tmp_path: Path) -> None:
    smoothed, digits = sween.SmoothedClassifier.load(ZOO), sween.load_dataset("digits")
    settings = CertifySettings(n0=10, n=500, sampling="doubled")
    run = sween.certify_dataset(
        smoothed, digits, out=tmp_path, indices=range(8), quiet=True, settings=settings
    )
    assert {row.n for row in run} == {500, 1000}
    assert verify_folder(tmp_path).images == 8
    other = [dataclasses.replace(row, n=1500 - row.n) for row in run]
    assert all(Doubled().problems(other, run.config.settings))


@pytest.mark.usefixtures("extended")
def test_a_toy_bound_certifies_and_verifies(tmp_path: Path) -> None:
    smoothed = sween.SmoothedClassifier.load(ZOO)
    images = sween.load_dataset("digits").test.images(range(4))
    half = smoothed.certify(images, n=500, bound="half", seed=3, indices=range(4))
    whole = smoothed.certify(images, n=500, seed=3, indices=range(4))
    assert [row.radius for row in half] == [row.radius / 2 for row in whole]
    run = sween.certify_dataset(
        smoothed, (images, None), out=tmp_path, n=500, bound="half", quiet=True
    )
    assert verify_folder(tmp_path).rows == len(run) == 4


def test_names_that_are_not_registered_are_refused() -> None:
    smoothed = sween.SmoothedClassifier.load(ZOO)
    with pytest.raises(sween.SweenError, match="doubled"):
        smoothed.certify(torch.zeros(1, 8, 8), n=500, sampling="doubled")
    with pytest.raises(sween.SweenError, match="half"):
        smoothed.certify(torch.zeros(1, 8, 8), n=500, bound="half")


@pytest.mark.parametrize("name", ["cohen", "two-class", "my bound", ""])
def test_a_bound_cannot_take_a_built_in_or_odd_name(name: str) -> None:
    with pytest.raises(sween.SweenError, match="bound name"):
        register_bound(Bound(name, _half))


@pytest.mark.parametrize("name", ["fixed", "budget", "a\nb"])
def test_a_strategy_cannot_take_a_built_in_or_odd_name(name: str) -> None:
    toy = type("Toy", (Doubled,), {"name": name})()
    with pytest.raises(sween.SweenError, match="sampling name"):
        register_sampling(toy)


def test_an_exit_is_one_rule_and_records_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy: stop as soon as the leading class has so much of the weight seen so far."""

    def stops(partial: Partial, policy: ExitPolicy) -> torch.Tensor:
        seen = sum(partial.weights[: len(partial.seen)])
        return partial.scores.amax(dim=1) > policy.threshold * seen

    rule = ExitRule(stops, fewest_members=lambda _: 1, parameters=("threshold",))
    monkeypatch.setitem(EXITS, "share", rule)
    texts = [ExitPolicy("share", threshold=value).describe() for value in (0.2, 0.9)]
    assert texts == ["share(threshold=0.2)", "share(threshold=0.9)"]
    assert [parse_exit(text).threshold for text in texts] == [0.2, 0.9]
    rows = [
        sween.SmoothedClassifier.load(ZOO, exit=ExitPolicy("share", threshold=value)).certify_one(
            torch.zeros(1, 8, 8), n=300, seed=0
        )
        for value in (0.2, 0.9)
    ]
    assert [row.exit for row in rows] == texts
    assert rows[0].member_evaluations < rows[1].member_evaluations
