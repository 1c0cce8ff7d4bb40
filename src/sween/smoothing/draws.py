"""Drawing the votes of a group of images: as many as planned, or until their radii are settled."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np
import torch

from sween.bounds.anytime import STEP, looks, settled
from sween.bounds.sample_size import size_for_tolerance
from sween.engine.engine import VoteEngine
from sween.engine.tally import Asked, ImageVotes
from sween.interleave import sent
from sween.smoothing.settings import CertifySettings

OnProgress = Callable[[int], None]

BATCHES_TOGETHER = 5
"""Batches of first votes whose images go on together on a GPU: when few of them are left, or when
they ask for different numbers of votes, forward passes must still be full."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The votes of every classifier of the panel on one image, and the time they took."""

    selection: list[ImageVotes]
    estimation: list[ImageVotes]
    seconds: float


Drawing = Generator[Drawn, None, None]
"""Close it to stop early."""


def images_at_once(engine: VoteEngine, settings: CertifySettings) -> int:
    """How many images fill batches with their selection votes, and then with the others."""
    if settings.sampling != "fixed":
        batches = BATCHES_TOGETHER if engine.compiled else 1
        votes = STEP if settings.sampling == "decide" else settings.n0
        return max(1, batches * engine.batch_blocks * STEP // votes)
    together = engine.images_together(settings.n)
    return together * -(-engine.images_together(settings.n0) // together)


class Counting:
    """Votes of all classifiers on a group of images, with the time an image took."""

    def __init__(
        self,
        engine: VoteEngine,
        images: torch.Tensor,
        indices: Sequence[int],
        settings: CertifySettings,
        on_progress: OnProgress | None,
    ) -> None:
        self.engine, self.images, self.indices = engine, images, indices
        self.settings, self.on_progress = settings, on_progress

    def __len__(self) -> int:
        return len(self.indices)

    def pilot(self) -> Asked:
        """The votes that select a class, of all images."""
        return self.asked("selection", range(len(self)), [self.settings.n0] * len(self))

    def asked(
        self,
        purpose: str,
        positions: Sequence[int],
        sizes: Sequence[int],
        *,
        first: Sequence[int] | None = None,
        scored: Sequence[int] | None = None,
    ) -> Asked:
        """Votes on the images at these positions."""
        examples = [self.indices[position] for position in positions]
        images = self.images[sent(torch.tensor(positions, dtype=torch.long), self.images.device)]
        return Asked(images, examples, purpose, sizes, first, scored)

    def each(self, sets: Iterable[Asked]) -> Iterator[tuple[list[list[ImageVotes]], float]]:
        """Of each set, for each image the votes of every classifier; and the seconds it took.

        That is the time since the set before came back; on a GPU a set is at work meanwhile.
        """
        began, voters = time.perf_counter(), range(len(self.engine.panel.names))
        for votes in self.engine.count_each(
            sets, seed=self.settings.seed, on_progress=self.on_progress
        ):
            now = time.perf_counter()
            took, began = (now - began) / max(1, len(votes)), now
            yield [[votes.of(voter, row) for voter in voters] for row in range(len(votes))], took

    def one(self, asked: Asked) -> tuple[list[list[ImageVotes]], float]:
        """`each` of one set."""
        (counted,) = self.each([asked])
        return counted


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the pilots of all images gave one of them: its size, and its own pilot votes.

    After running out of memory the votes that certify come from smaller forward passes than the
    pilot's. That is sound: the pilot only says which class and how many votes, whatever shape it
    was counted in, and the sizes of all images stay those that their pilots call for.
    """

    size: int
    pilot: ImageVotes


def planned(counting: Counting, plans: Sequence[Plan] | None) -> Drawing:
    """n0 votes of each image, then fresh ones: n, or as many as the first ones call for.

    Valid with `decide` on the fresh ones at the full alpha: their noise has keys of its own, so
    that given the first ones, and the sizes made of them, they are as if drawn in advance.
    """
    settings, engine = counting.settings, counting.engine
    pilots, selecting = list[Asked](), 0.0
    if plans is not None:
        selection = [[plan.pilot] for plan in plans]
        sizes = [plan.size for plan in plans]
    elif settings.tolerance is not None:
        selection, selecting = counting.one(counting.pilot())
        sizes = [_size(votes[-1], settings) for votes in selection]
    else:
        # Nothing hangs on the first votes yet: they are queued with the others.
        pilots, sizes = [counting.pilot()], [settings.n] * len(counting)
    parts = list(_parts(sizes, engine))
    sets = (counting.asked("estimation", part, [sizes[i] for i in part]) for part in parts)
    counted = counting.each(itertools.chain(pilots, sets))
    if pilots:
        selection, selecting = next(counted)
    for part, (estimation, estimating) in zip(parts, counted, strict=True):
        for position, votes in zip(part, estimation, strict=True):
            yield Drawn(selection[position], votes, selecting + estimating)


def softly(counting: Counting) -> Drawing:
    """Pilot votes choose the class; then its scores are collected: the pilot's, and fresh ones."""
    settings, engine = counting.settings, counting.engine
    selection, selecting = counting.one(counting.pilot())
    classes = [int(np.argmax(votes[-1].counts)) for votes in selection]
    parts = list(_parts([settings.n] * len(counting), engine))
    # The pilot's noise once more: now it is known whose scores to collect.
    scored = dataclasses.replace(counting.pilot(), scored=classes)
    sets = (
        counting.asked(
            "estimation", part, [settings.n] * len(part), scored=[classes[i] for i in part]
        )
        for part in parts
    )
    counted = counting.each(itertools.chain([scored], sets))
    pilot, again = next(counted)
    for part, (fresh, took) in zip(parts, counted, strict=True):
        for position, votes in zip(part, fresh, strict=True):
            # The class is the one that the first pass chose, whatever a second one would say.
            chosen = dataclasses.replace(pilot[position][0], counts=selection[position][0].counts)
            yield Drawn([chosen], votes, selecting + again + took)


def _parts(sizes: Sequence[int], engine: VoteEngine) -> Iterator[list[int]]:
    """Positions to count together: few, but enough to fill batches where these have one size."""
    if len(set(sizes)) == 1 and sizes[0] > 0:
        together = engine.images_together(sizes[0])
        for start in range(0, len(sizes), together):
            yield list(range(start, min(start + together, len(sizes))))
        return
    wanted = engine.batch_blocks * STEP * (BATCHES_TOGETHER if engine.compiled else 1)
    part, asked = list[int](), 0
    for position, size in enumerate(sizes):
        part.append(position)
        asked += size
        if asked >= wanted:
            yield part
            part, asked = [], 0
    if part:
        yield part


def _size(selection: ImageVotes, settings: CertifySettings) -> int:
    if settings.tolerance is None:
        return settings.n
    return size_for_tolerance(
        max(selection.counts),
        settings.n0,
        tolerance=settings.tolerance,
        largest=settings.n,
        alpha=settings.alpha,
    )


def decided(counting: Counting) -> Drawing:
    """n0 votes of each image, then looks at more and more fresh ones until all is settled.

    Valid with `decide_radii`, whose bound holds at all looks at once, whatever makes them stop.
    """
    settings, sigma = counting.settings, counting.engine.sigma
    selection, selecting = counting.one(counting.pilot())
    candidates = [int(np.argmax(votes[-1].counts)) for votes in selection]
    sums = [ImageVotes((0,) * len(votes[-1].counts), 0, 0) for votes in selection]
    seconds = [selecting] * len(counting)
    active, drawn = list(range(len(counting))), 0
    for look in looks(settings.n):
        fresh, took = counting.one(
            counting.asked(
                "estimation",
                active,
                [look - drawn] * len(active),
                first=[drawn // STEP] * len(active),
            )
        )
        for position, own in zip(active, fresh, strict=True):
            sums[position] = sums[position] + own[-1]
            seconds[position] += took
        stop = settled(
            np.asarray([sums[i].counts[candidates[i]] for i in active]),
            look,
            settings.radii,
            largest=settings.n,
            alpha=settings.alpha,
            sigma=sigma,
        )
        active = [i for i, is_settled in zip(active, stop, strict=True) if not is_settled]
        drawn = look
        if not active:
            break
    for position, votes in enumerate(sums):
        yield Drawn(selection[position], [votes], seconds[position])
