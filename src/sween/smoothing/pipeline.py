"""The certification pipeline: images in, certificates out.

`SmoothedClassifier.certify`, `certify_dataset`, the command line and `sween verify --recount` all
run this one generator.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import torch

from sween.engine import ForwardPassShrunk, VoteEngine, VoteRequest
from sween.engine.workers import run_all
from sween.interleave import to_device_async
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.sampling.strategy import BatchShape, Plan, Request
from sween.sampling.votes import ByVoter, VotePair
from sween.smoothing.images_ahead import ImagesAhead, ImageSource
from sween.smoothing.tail import check_tail

PILOTS_TOGETHER = 100
"""The most images whose pilot votes are counted at once."""

OnProgress = Callable[[int], None]
"""Called with the number of noisy copies evaluated (on a GPU: queued) since the last call."""


def check_engine(engine: VoteEngine, settings: CertifySettings, *, numbers: int) -> None:
    """Refuse settings that do not suit the voters, or the noise on images of `numbers` values.

    See `SamplingStrategy.check_voters` and `check_tail`.
    """
    check_tail(engine.noise, engine.device, settings, numbers)
    settings.strategy.check_voters(settings, engine.exits)


def certify(
    engines: Sequence[VoteEngine],
    source: ImageSource,
    positions: Sequence[int],
    settings: CertifySettings,
    *,
    left: Sequence[int] | None = None,
    plans: Mapping[int, Plan] | None = None,
    on_progress: OnProgress | None = None,
) -> Generator[list[Certificate], None, None]:
    """For each image the certificates of every voter, in the order of `engine.voters`.

    Each single certificate holds with probability at least 1 - alpha (see
    `SamplingStrategy.decide`), provided that images were chosen without knowledge of the noise.
    With one engine images come in order, with several as they are finished. If memory runs out,
    unfinished images start again with smaller forward passes.

    Args:
        engines: prepared and checked, each on its own device.
        source: of the images.
        positions: of all images, over which a budget is allocated.
        settings: of the sampling.
        left: images still to certify; all by default.
        plans: for all images, if `plan_all` was already called.
        on_progress: see `OnProgress`.
    """
    left = positions if left is None else left
    if not left:
        return
    strategy = settings.strategy
    if plans is None:
        plans = plan_all(engines[0], source, positions, settings)
    together = strategy.images_at_once(engines[0], settings)
    groups = [left[start : start + together] for start in range(0, len(left), together)]
    with ImagesAhead(source, groups, engines=len(engines)) as images:

        def work(
            engine: VoteEngine, group: Sequence[int], on_progress: OnProgress
        ) -> Iterator[list[Certificate]]:
            return _certify_group(engine, images, group, settings, plans, on_progress)

        yield from run_all(engines, groups, work, on_progress or (lambda _: None))


def plan_all(
    engine: VoteEngine, source: ImageSource, positions: Sequence[int], settings: CertifySettings
) -> dict[int, Plan]:
    """A plan for each image, if the strategy plans from the pilot votes on all images."""
    strategy = settings.strategy
    if not strategy.planned:
        return {}
    while True:  # all pilot votes must come from one shape
        with contextlib.suppress(ForwardPassShrunk):
            pilots = list(count_pilots(engine, source, positions, settings))
            break
    sizes = strategy.plan(pilots, settings, engine.name)
    return {
        position: Plan(size, pilot)
        for position, size, pilot in zip(positions, sizes, pilots, strict=True)
    }


def count_pilots(
    engine: VoteEngine, source: ImageSource, positions: Sequence[int], settings: CertifySettings
) -> Iterator[ByVoter]:
    """The pilot votes on each image, in order.

    Raises:
        ForwardPassShrunk: memory ran out; the images that are left need smaller forward passes.
    """
    together = min(PILOTS_TOGETHER, settings.strategy.images_at_once(engine, settings))
    groups = [positions[start : start + together] for start in range(0, len(positions), together)]

    def requests() -> Iterator[VoteRequest]:
        with ImagesAhead(source, groups) as images:
            for part in groups:
                keys = [source.index(position) for position in part]
                sizes = [settings.n0] * len(part)
                yield VoteRequest(_images(engine, images, part), keys, "selection", sizes)

    for votes in engine.count(requests(), seed=settings.seed):
        yield from (votes.by_voter(place) for place in range(len(votes)))


def _images(engine: VoteEngine, source: ImageSource, positions: Sequence[int]) -> torch.Tensor:
    """Images on the engine's device; refuses those that its noise does not suit."""
    images = source.images(positions)
    engine.noise.check(images)
    return engine.place(images)


def _certify_group(
    engine: VoteEngine,
    source: ImageSource,
    positions: Sequence[int],
    settings: CertifySettings,
    plans: Mapping[int, Plan],
    on_progress: OnProgress,
) -> Iterator[list[Certificate]]:
    done = 0
    while done < len(positions):
        group = _Group(engine, source, positions[done:], settings, plans, on_progress)
        with (
            contextlib.suppress(ForwardPassShrunk),
            contextlib.closing(settings.strategy.draw(group)) as drawing,
        ):
            for drawn in drawing:
                index, label = source.index(positions[done]), source.label(positions[done])
                yield [
                    dataclasses.replace(
                        _certificate(engine, voter, drawn.of(voter), settings),
                        index=index,
                        label=label,
                        seconds=round(drawn.seconds, 6),
                    )
                    for voter in engine.voters
                ]
                done += 1


class _Group:
    """Votes on a group of images; see `VoteSource`."""

    def __init__(
        self,
        engine: VoteEngine,
        source: ImageSource,
        positions: Sequence[int],
        settings: CertifySettings,
        plans: Mapping[int, Plan],
        on_progress: OnProgress,
    ) -> None:
        self.settings, self.sigma, self.model = settings, engine.sigma, engine.name
        self.on_progress, self._engine = on_progress, engine
        self.shape: BatchShape = engine
        self.keys = [source.index(position) for position in positions]
        self.plans: Sequence[Plan] | None = [plans[p] for p in positions] if plans else None
        self.images = _images(engine, source, positions)

    def __len__(self) -> int:
        return len(self.keys)

    def count(self, requests: Iterable[Request]) -> Iterator[tuple[list[ByVoter], float]]:
        """For each request, the votes on each image and the seconds per image.

        Time is measured between results: on a GPU the next request is already being computed.
        """
        began = time.perf_counter()
        for votes in self._engine.count(
            map(self._located, requests), seed=self.settings.seed, on_progress=self.on_progress
        ):
            now = time.perf_counter()
            took, began = (now - began) / max(1, len(votes)), now
            yield [votes.by_voter(place) for place in range(len(votes))], took

    def _located(self, request: Request) -> VoteRequest:
        positions = torch.tensor(request.positions, dtype=torch.long)
        return VoteRequest(
            self.images[to_device_async(positions, self.images.device)],
            [self.keys[position] for position in request.positions],
            request.purpose,
            request.sizes,
            request.first,
            request.scored,
        )


def _certificate(
    engine: VoteEngine, voter: str, votes: VotePair, settings: CertifySettings
) -> Certificate:
    selection, estimation = votes.selection, votes.estimation
    ((decision, decisions),) = settings.strategy.decide([votes], settings, engine.sigma)
    return Certificate(
        index=0,
        label=None,
        selection_counts=selection.counts,
        estimation_counts=estimation.counts,
        n0=settings.n0,
        n=settings.strategy.recorded_n(settings, estimation.drawn),
        alpha=settings.alpha,
        sigma=engine.sigma,
        bound=settings.bound,
        sampling=settings.sampling,
        samples=settings.n0 + estimation.drawn,
        decisions=decisions,
        exit=engine.exits[voter],
        votes=settings.votes,
        selection_scores=selection.scores,
        estimation_scores=estimation.scores,
        noise=engine.noise.name,
        precision=engine.precision,
        forward_rows=engine.forward_rows,
        member_evaluations=selection.evaluations + estimation.evaluations,
        seconds=0.0,
        model=voter,
        seed=settings.seed,
        **vars(decision),
    )
