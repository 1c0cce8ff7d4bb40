"""A pilot: a short certification of a few images, to predict what all of them will cost."""

from collections.abc import Sequence

from sween.data.dataset import ImageSet
from sween.progress import track
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.seeding import numpy_generator, torch_seed
from sween.smoothing import SmoothedClassifier, pipeline

PILOT_VOTES = 1_000
"""Votes on an image of a pilot. Fewer blur the probabilities of its classes: with 200, the cost of
deciding a radius of three sigma is overestimated by 20%, with these by less than 10%."""

PILOT_IMAGES = {True: 100, False: 2_000}
"""Images of a pilot by whether every image takes the same number of samples. Otherwise 2,000 put
the prediction within 15% in 19 cases of 20 (see docs/planning.md)."""


def pilot_positions(size: int, images: int | None, settings: CertifySettings) -> list[int]:
    """The positions of a pilot's images, drawn at random from `size`; by default as many as needed.

    Positions are sorted, since files are read faster in order.
    """
    if images is None:
        images = PILOT_IMAGES[settings.strategy.votes_per_image(settings) is not None]
    chosen = numpy_generator(settings.seed, "pilot images").permutation(size)[:images]
    return sorted(int(position) for position in chosen)


def run_pilot(
    smoothed: SmoothedClassifier,
    source: ImageSet,
    positions: Sequence[int],
    settings: CertifySettings,
    *,
    quiet: bool = False,
) -> list[Certificate]:
    """Certify some images with few votes, through the pipeline of every certification.

    Nothing is written. The noise is not that of the run to come: settings may be chosen by what a
    pilot shows, and a certificate's votes must be independent of its settings.

    Args:
        smoothed: the classifier of the run, with its exit.
        source: of the images.
        positions: of those to certify.
        settings: of the run to come; refused here if they do not suit the classifier.
        quiet: no progress display.
    """
    own = CertifySettings(
        n0=settings.n0,
        n=min(settings.n, PILOT_VOTES),
        alpha=settings.alpha,
        seed=torch_seed(settings.seed, "pilot"),
    )
    engine = smoothed.engine
    first = source.images(positions[:1])[0]
    engine.follow_device()
    pipeline.check_engine(engine, settings, numbers=first.numel())
    engine.prepare(first)
    for _ in pipeline.certify([engine], source, positions[:1], own):
        pass  # the first pass is slower than the others, and would count
    rows = list[Certificate]()
    with track(f"pilot of {smoothed.name}", len(positions), quiet=quiet) as advance:
        for (row,) in pipeline.certify([engine], source, positions, own):
            rows.append(row)
            advance(1, "images")
    return rows
