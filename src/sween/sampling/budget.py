"""`budget`: a total over all images, allocated for the largest expected average radius."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sween.arguments import whole_number
from sween.bounds.binomial import Floats
from sween.bounds.sample_size import least_budget, sizes_for_budget
from sween.errors import BadInput
from sween.records import Certificate
from sween.sampling.settings import CertifySettings
from sween.sampling.strategy import (
    Drawing,
    SamplingStrategy,
    VoteSource,
    draw_estimation,
    size_problems,
)
from sween.sampling.votes import ByVoter

MOST = 10**15
"""Of votes, more than a GPU counts in a decade."""


class Budget(SamplingStrategy):
    """Votes are allocated to all images of a run together, at most n to each."""

    name = "budget"
    option = "budget"
    default_n0 = 1_000
    planned = True

    def check(self, settings: CertifySettings) -> Mapping[str, Any]:
        budget = whole_number("budget", settings.budget)
        if budget > MOST:
            raise BadInput("budget", expected=f"at most {MOST:g}", got=budget, fix="lower it")
        return {"budget": budget}

    def plan(self, pilots: Sequence[ByVoter], settings: CertifySettings, model: str) -> list[int]:
        return _sizes([pilot[model].counts for pilot in pilots], settings)

    def draw(self, source: VoteSource) -> Drawing:
        assert source.plans is not None  # made for the whole run beforehand
        sizes = [plan.size for plan in source.plans]
        return draw_estimation(source, sizes, ([plan.pilot for plan in source.plans], 0.0))

    def most_samples(self, settings: CertifySettings) -> int | None:
        return settings.budget

    def simulate_samples(
        self,
        probabilities: Floats,
        settings: CertifySettings,
        *,
        sigma: float,
        images: int,
        generator: np.random.Generator,
    ) -> npt.NDArray[np.int64]:
        assert settings.budget is not None  # ensured by `check`
        n0, sample = settings.n0, len(probabilities)
        least = least_budget(n0, images, largest=settings.n, budget=settings.budget)
        share = least_budget(n0, sample, largest=settings.n)
        share += (settings.budget - least) * sample // images
        pilots = generator.binomial(n0, probabilities)[:, None].tolist()
        return n0 + np.asarray(_sizes(pilots, dataclasses.replace(settings, budget=share)))

    def run_problems(
        self, rows: Sequence[Certificate], settings: CertifySettings
    ) -> list[list[str]]:
        sizes = _sizes([row.selection_counts for row in rows], settings)
        return size_problems(rows, sizes, "the pilot votes of all images call for")


def _sizes(pilot_counts: Sequence[Sequence[int]], settings: CertifySettings) -> list[int]:
    assert settings.budget is not None  # ensured by `check`
    return sizes_for_budget(
        [max(counts) for counts in pilot_counts],
        settings.n0,
        budget=settings.budget,
        largest=settings.n,
        alpha=settings.alpha,
    )
