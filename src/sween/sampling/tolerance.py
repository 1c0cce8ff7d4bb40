"""`tolerance`: as many votes as the pilot says are needed for a radius close to that of n votes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sween.arguments import real_number
from sween.bounds.binomial import Floats
from sween.bounds.sample_size import size_for_tolerance
from sween.errors import BadInput
from sween.records import Certificate
from sween.sampling.settings import CertifySettings
from sween.sampling.strategy import (
    Drawing,
    SamplingStrategy,
    VoteSource,
    draw_estimation,
    draw_selection,
    size_problems,
)


class Tolerance(SamplingStrategy):
    """As many votes on an image as its own pilot votes call for."""

    name = "tolerance"
    option = "tolerance"
    default_n0 = 1_000

    def check(self, settings: CertifySettings) -> Mapping[str, Any]:
        tolerance = real_number("tolerance", settings.tolerance)
        if not 0 < tolerance < 1:
            raise BadInput("tolerance", expected="between 0 and 1", got=tolerance, fix="0.05 is 5%")
        return {"tolerance": tolerance}

    def draw(self, source: VoteSource) -> Drawing:
        selected = draw_selection(source)
        sizes = [_size(votes[source.model].counts, source.settings) for votes in selected[0]]
        return draw_estimation(source, sizes, selected)

    def simulate_samples(
        self,
        probabilities: Floats,
        settings: CertifySettings,
        *,
        sigma: float,
        images: int,
        generator: np.random.Generator,
    ) -> npt.NDArray[np.int64]:
        pilots = generator.binomial(settings.n0, probabilities).tolist()
        return settings.n0 + np.asarray([_size([count], settings) for count in pilots])

    def problems(self, rows: Sequence[Certificate], settings: CertifySettings) -> list[list[str]]:
        sizes = [_size(row.selection_counts, settings) for row in rows]
        return size_problems(rows, sizes, "the pilot votes call for")


def _size(pilot_counts: Sequence[int], settings: CertifySettings) -> int:
    assert settings.tolerance is not None  # ensured by `check`
    return size_for_tolerance(
        max(pilot_counts),
        settings.n0,
        tolerance=settings.tolerance,
        largest=settings.n,
        alpha=settings.alpha,
    )
