"""`decide`: draw votes until it is clear which of the requested radii are certified.

The bound is valid at all looks simultaneously (`sween.bounds.anytime`), so any stopping rule is.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sween.bounds.anytime import STEP, check_radii_to_decide, looks, settled
from sween.bounds.binomial import Floats
from sween.bounds.decision import decide_radii_each
from sween.errors import BadInput
from sween.records import Certificate
from sween.sampling.settings import CertifySettings
from sween.sampling.strategy import (
    BATCHES_TOGETHER,
    Answer,
    BatchShape,
    Drawing,
    Request,
    SamplingStrategy,
    VoteSource,
    draw_selection,
    size_problems,
)
from sween.sampling.votes import Drawn, ImageVotes, VotePair


class Decide(SamplingStrategy):
    """Votes until every requested radius is certified or given up, at most n."""

    name = "decide"
    option = "radii"

    def check(self, settings: CertifySettings) -> Mapping[str, Any]:
        radii = check_radii_to_decide(settings.radii)
        if settings.bound != "cohen":
            raise BadInput(
                "bound", expected="cohen with decide", got=settings.bound, fix="use the cohen bound"
            )
        return {"radii": radii}

    def images_at_once(self, shape: BatchShape, settings: CertifySettings) -> int:
        return max(1, (BATCHES_TOGETHER if shape.compiled else 1) * shape.batch_blocks)

    def draw(self, source: VoteSource) -> Drawing:
        """Selection votes, then more and more estimation votes until all radii are settled."""
        settings, model = source.settings, source.model
        selection, selecting = draw_selection(source)
        candidates = [int(np.argmax(votes[model].counts)) for votes in selection]
        sums = [ImageVotes((0,) * len(votes[model].counts), 0, 0) for votes in selection]
        seconds = [selecting] * len(source)
        active, drawn = list(range(len(source))), 0
        for look in looks(settings.n):
            fresh = Request(
                "estimation",
                active,
                [look - drawn] * len(active),
                first=[drawn // STEP] * len(active),
            )
            ((votes, took),) = source.count([fresh])
            for position, own in zip(active, votes, strict=True):
                sums[position] = sums[position] + own[model]
                seconds[position] += took
            stop = settled(
                np.asarray([sums[i].counts[candidates[i]] for i in active]),
                look,
                settings.radii,
                largest=settings.n,
                alpha=settings.alpha,
                sigma=source.sigma,
            )
            active = [i for i, is_settled in zip(active, stop, strict=True) if not is_settled]
            drawn = look
            if not active:
                break
        for position, total in enumerate(sums):
            yield Drawn(selection[position], {model: total}, seconds[position])

    def simulate_samples(
        self,
        probabilities: Floats,
        settings: CertifySettings,
        *,
        sigma: float,
        images: int,
        generator: np.random.Generator,
    ) -> npt.NDArray[np.int64]:
        drawn = np.zeros(len(probabilities), np.int64)
        count, active, before = drawn.copy(), np.arange(len(probabilities)), 0
        for look in looks(settings.n):
            count[active] += generator.binomial(look - before, probabilities[active])
            drawn[active], before = look, look
            stop = settled(
                count[active],
                look,
                settings.radii,
                largest=settings.n,
                alpha=settings.alpha,
                sigma=sigma,
            )
            active = active[~stop]
            if not active.size:
                break
        return drawn + settings.n0

    def decide(
        self, votes: Sequence[VotePair], settings: CertifySettings, sigma: float
    ) -> list[Answer]:
        return list[Answer](
            decide_radii_each(
                [pair.selection.counts for pair in votes],
                [pair.estimation.counts for pair in votes],
                settings.radii,
                [pair.estimation.drawn for pair in votes],
                largest=settings.n,
                alpha=settings.alpha,
                sigma=sigma,
            )
        )

    def recorded_n(self, settings: CertifySettings, drawn: int) -> int:
        """The most votes it might have drawn; `samples` says how many it did."""
        return settings.n

    def problems(self, rows: Sequence[Certificate], settings: CertifySettings) -> list[list[str]]:
        drawn = np.asarray([row.samples - row.n0 for row in rows])
        votes = [row.estimation_counts[int(np.argmax(row.selection_counts))] for row in rows]
        stopped = settled(
            np.asarray(votes),
            drawn,
            settings.radii,
            largest=settings.n,
            alpha=settings.alpha,
            sigma=rows[0].sigma,
        )
        problems = size_problems(rows, [settings.n] * len(rows), "the run's config says")
        valid = _looks(settings.n)
        for own, size, is_settled in zip(problems, drawn.tolist(), stopped, strict=True):
            if not own and not (is_settled and size in valid):
                own.append(f"{size} votes were drawn, which is not a valid stopping point")
        return problems


@functools.lru_cache(maxsize=16)
def _looks(largest: int) -> frozenset[int]:
    return frozenset(looks(largest))
