"""From votes to certificates, image by image, for every classifier of a panel."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from sween.records import Certificate
from sween.smoothing.decision import decide
from sween.smoothing.settings import CertifySettings
from sween.smoothing.votes import ImageVotes, VoteEngine

OnProgress = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The votes of every classifier of the panel on one image, and the time they took."""

    selection: list[ImageVotes]
    estimation: list[ImageVotes]
    seconds: float


def images_at_once(engine: VoteEngine, settings: CertifySettings) -> int:
    """How many images fill batches with their selection votes, and then with the others."""
    together = engine.images_together(settings.n)
    return together * -(-engine.images_together(settings.n0) // together)


def certify_each(
    engine: VoteEngine,
    images: torch.Tensor,
    indices: Sequence[int],
    labels: Sequence[int | None],
    settings: CertifySettings,
    *,
    on_progress: OnProgress | None = None,
) -> Iterator[list[Certificate]]:
    """For each image in turn, the certificates of every classifier of the panel.

    Images that run out of memory are started again in smaller forward passes.

    Args:
        engine: prepared.
        images: (N, C, H, W) on the engine's device; trusted.
        indices: of the images; also the keys of their noise.
        labels: true classes, for the records.
        settings: of the sampling.
        on_progress: called with the noisy copies done since the last call.
    """
    done = 0
    while done < len(indices):
        stop = done + images_at_once(engine, settings)
        group = slice(done, stop)
        try:
            for drawn in fixed_votes(engine, images[group], indices[group], settings, on_progress):
                yield [
                    _certificate(engine, voter, drawn, indices[done], labels[done], settings)
                    for voter in range(len(engine.panel.names))
                ]
                done += 1
        except (RuntimeError, MemoryError) as error:
            engine.shrink(error)
            engine.prepare(images[done])


def fixed_votes(
    engine: VoteEngine,
    images: torch.Tensor,
    indices: Sequence[int],
    settings: CertifySettings,
    on_progress: OnProgress | None,
) -> Iterator[Drawn]:
    """n0 votes of each image, then n fresh ones; the few of the first kind for all at once."""
    voters = range(len(engine.panel.names))

    def count(part: slice, purpose: str, n: int) -> tuple[list[list[ImageVotes]], float]:
        began = time.perf_counter()
        votes = engine.count(
            images[part],
            examples=indices[part],
            purpose=purpose,
            n=n,
            seed=settings.seed,
            on_progress=on_progress,
        )
        size = len(indices[part])
        each = [[votes.of(voter, position) for voter in voters] for position in range(size)]
        return each, (time.perf_counter() - began) / size

    selection, selecting = count(slice(None), "selection", settings.n0)
    together = engine.images_together(settings.n)
    for start in range(0, len(indices), together):
        part = slice(start, start + together)
        estimation, estimating = count(part, "estimation", settings.n)
        for own, votes in zip(selection[part], estimation, strict=True):
            yield Drawn(own, votes, selecting + estimating)


def _certificate(
    engine: VoteEngine,
    voter: int,
    drawn: Drawn,
    index: int,
    label: int | None,
    settings: CertifySettings,
) -> Certificate:
    selection, estimation = drawn.selection[voter], drawn.estimation[voter]
    decision = decide(
        selection.counts,
        estimation.counts,
        alpha=settings.alpha,
        sigma=engine.sigma,
        bound=settings.bound,
    )
    return Certificate(
        index=index,
        label=label,
        selection_counts=selection.counts,
        estimation_counts=estimation.counts,
        sigma=engine.sigma,
        samples=settings.n0 + settings.n,
        decisions=None,
        exit=engine.panel.exits[voter],
        votes="hard",
        noise="float32",
        precision=engine.precision,
        forward_rows=engine.forward_rows,
        member_evaluations=selection.evaluations + estimation.evaluations,
        seconds=round(drawn.seconds, 6),
        model=engine.panel.names[voter],
        **dataclasses.asdict(settings),
        **dataclasses.asdict(decision),
    )
