"""`fixed`: n0 selection votes and n fresh estimation votes per image (Cohen et al.'s CERTIFY)."""

from collections.abc import Sequence

from sween.records import Certificate
from sween.sampling.settings import CertifySettings
from sween.sampling.strategy import (
    BatchShape,
    Drawing,
    SamplingStrategy,
    VoteSource,
    draw_estimation,
    size_problems,
)


class Fixed(SamplingStrategy):
    """The same number of votes for every image."""

    name = "fixed"
    several_voters = True
    any_bound = True

    def votes_per_image(self, settings: CertifySettings) -> int:
        return settings.n0 + settings.n

    def images_at_once(self, shape: BatchShape, settings: CertifySettings) -> int:
        together = shape.images_together(settings.n)
        return together * -(-shape.images_together(settings.n0) // together)

    def draw(self, source: VoteSource) -> Drawing:
        return draw_estimation(source, [source.settings.n] * len(source), None)

    def problems(self, rows: Sequence[Certificate], settings: CertifySettings) -> list[list[str]]:
        return size_problems(rows, [settings.n] * len(rows), "the run's config says")
