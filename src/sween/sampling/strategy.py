"""What a sampling strategy is: how votes are spent on images, and what they then prove.

A strategy is one object in one file. It checks its settings, draws votes, decides what they
certify, and says of recorded rows whether they are what it would have drawn. Register it and it is
known to the Python API, the command line and `sween verify`. No torch here: votes come from a
`VoteSource`.
"""

import abc
import dataclasses
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sween.bounds.anytime import STEP
from sween.bounds.decision import Decision, decide_each
from sween.errors import BadInput, UnknownName
from sween.records import Certificate
from sween.sampling.votes import ByVoter, Drawn, VotePair

if TYPE_CHECKING:
    from sween.sampling.settings import CertifySettings

BATCHES_TOGETHER = 5
"""Batches of first votes whose images are processed together on a GPU: when few of them are left,
or when they ask for different numbers of votes, forward passes must still be full."""

Drawing = Generator[Drawn, None, None]
"""The votes of the images of a group, in their order. Close it to stop early."""

Answer = tuple[Decision, dict[str, bool] | None]
"""What votes prove, and which of the radii asked for are certified."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Votes on images of a group, named by their positions; see `sween.engine.VoteRequest`."""

    purpose: str
    positions: Sequence[int]
    sizes: Sequence[int]
    first: Sequence[int] | None = None
    scored: Sequence[int] | None = None


class BatchShape(Protocol):
    """What a strategy may know of the engine: how many images fill its batches."""

    @property
    def compiled(self) -> bool:
        """Whether batches come in one size."""
        ...

    @property
    def batch_blocks(self) -> int:
        """Noise blocks of one batch."""
        ...

    def images_together(self, n: int) -> int:
        """How many images fill whole batches with n votes each."""
        ...


class VoteSource(Protocol):
    """Votes on a group of images.

    Attributes:
        settings: of the sampling.
        sigma: noise level.
        model: the name of the voter that is certified; where there are others, they see the same
            noise.
        shape: of the engine's batches.
        plans: votes of each image that `SamplingStrategy.plan` made, with its pilot.
    """

    settings: "CertifySettings"
    sigma: float
    model: str
    shape: BatchShape
    plans: Sequence["Plan"] | None

    def __len__(self) -> int: ...

    def count(self, requests: Iterable[Request]) -> Iterator[tuple[list[ByVoter], float]]:
        """Of each request the votes on each of its images, and the seconds an image took."""
        ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the pilots of all images gave one of them: its size, and its own pilot votes.

    After running out of memory the votes that certify come from smaller forward passes than the
    pilot's. That is sound: the pilot only says which class and how many votes, whatever shape it
    was counted in, and the sizes of all images stay those that their pilots call for.
    """

    size: int
    pilot: ByVoter


class SamplingStrategy(abc.ABC):
    """How votes are spent on images. Stateless; see the module's docstring."""

    name: ClassVar[str]
    votes: ClassVar[str] = "hard"
    option: ClassVar[str | None] = None
    """The setting that it alone needs."""
    default_n0: ClassVar[int] = 100
    several_voters: ClassVar[bool] = False
    """Whether members and variants can be certified in the same pass: not if they would stop at
    different times."""
    planned: ClassVar[bool] = False
    """Whether the sizes of all images are planned together, from their pilots."""

    def check(self, settings: "CertifySettings") -> Mapping[str, Any]:
        """Refuse settings that it cannot work with; settings to put in their place."""
        return {}

    def check_voters(self, settings: "CertifySettings", exits: Mapping[str, str]) -> None:
        """Refuse voters, named with their exits, that it cannot certify together."""
        if settings.bound != "cohen" and self.name != "fixed":
            # Its sizes are those that Cohen's radius needs. Sound, so that old rows still verify.
            raise BadInput(
                "bound",
                expected=f"cohen with {self.name}",
                got=settings.bound,
                fix="use --bound cohen; its rows have the two-class radius too",
            )
        if len(exits) > 1 and not self.several_voters:
            what = "votes soft" if self.votes == "soft" else f"sampling {self.name}"
            raise BadInput(
                what,
                expected="one classifier",
                got=f"{len(exits)}: {', '.join(exits)}",
                fix="leave --members, --weighting and a second --exit out, or use hard votes and "
                "--sampling fixed",
            )

    def images_at_once(self, shape: BatchShape, settings: "CertifySettings") -> int:
        """How many images make a group: enough to fill batches with their first votes."""
        batches = BATCHES_TOGETHER if shape.compiled else 1
        return max(1, batches * shape.batch_blocks * STEP // settings.n0)

    def plan(self, pilots: Sequence[ByVoter], settings: "CertifySettings", model: str) -> list[int]:
        """The sizes of all images of a run from their pilot votes, where `planned`."""
        raise NotImplementedError

    @abc.abstractmethod
    def draw(self, source: VoteSource) -> Drawing:
        """The votes of each image of a group."""

    def decide(
        self, votes: Sequence[VotePair], settings: "CertifySettings", sigma: float
    ) -> list[Answer]:
        """What the votes on each image prove, each with probability at least 1 - alpha.

        By default Cohen et al.'s CERTIFY: valid where the number of estimation votes is fixed, or
        hangs on the selection votes alone.
        """
        decisions = decide_each(
            [pair.selection.counts for pair in votes],
            [pair.estimation.counts for pair in votes],
            [pair.estimation.drawn for pair in votes],
            alpha=settings.alpha,
            sigma=sigma,
            bound=settings.bound,
        )
        return [(decision, None) for decision in decisions]

    def recorded_n(self, settings: "CertifySettings", drawn: int) -> int:
        """The `n` of a certificate whose estimation votes are `drawn`."""
        return drawn

    def problems(self, rows: Sequence[Certificate], settings: "CertifySettings") -> list[list[str]]:
        """For each row, whose votes add up, what was not drawn as this strategy draws."""
        return [[] for _ in rows]

    def run_problems(
        self, rows: Sequence[Certificate], settings: "CertifySettings"
    ) -> list[list[str]]:
        """For each row of a complete run, what does not fit the other rows."""
        return [[] for _ in rows]


_STRATEGIES: dict[tuple[str, str], SamplingStrategy] = {}


def register_sampling(strategy: SamplingStrategy) -> SamplingStrategy:
    """Make a strategy known by its name."""
    _STRATEGIES[strategy.name, strategy.votes] = strategy
    return strategy


def sampling_names() -> tuple[str, ...]:
    """The names of all strategies with hard votes, the default first."""
    return tuple(name for name, votes in _STRATEGIES if votes == "hard")


def strategy_of(sampling: str, votes: str = "hard") -> SamplingStrategy:
    """The strategy of that name.

    Raises:
        BadInput: none has it, or it has no such votes.
    """
    if sampling not in sampling_names():
        raise UnknownName("sampling", sampling, sampling_names())
    kinds = tuple(dict.fromkeys(own for _, own in _STRATEGIES))
    if votes not in kinds:
        raise UnknownName("votes", votes, kinds)
    if (sampling, votes) not in _STRATEGIES:
        raise BadInput(
            f"votes {votes}",
            expected="sampling fixed",
            got=sampling,
            fix="leave --sampling out",
        )
    return _STRATEGIES[sampling, votes]


def pilot(source: VoteSource) -> Request:
    """The selection votes of all images of a group."""
    return Request("selection", range(len(source)), [source.settings.n0] * len(source))


def draw_selection(source: VoteSource) -> tuple[list[ByVoter], float]:
    """The selection votes of all images, and the seconds an image took."""
    (counted,) = source.count([pilot(source)])
    return counted


def draw_estimation(
    source: VoteSource, sizes: Sequence[int], selected: tuple[list[ByVoter], float] | None
) -> Drawing:
    """Fresh estimation votes in the given sizes; the selection votes first, where not yet drawn.

    Valid with `decide` at the full alpha: their noise has keys of its own, so that given the
    selection votes, and the sizes made of them, they are as if drawn in advance.
    """
    pilots = [pilot(source)] if selected is None else []  # queued with the others, on a GPU
    parts = list(parts_of(sizes, source.shape))
    requests = (Request("estimation", part, [sizes[i] for i in part]) for part in parts)
    counted = source.count(itertools.chain(pilots, requests))
    selection, selecting = next(counted) if selected is None else selected
    for part, (estimation, estimating) in zip(parts, counted, strict=True):
        for position, votes in zip(part, estimation, strict=True):
            yield Drawn(selection[position], votes, selecting + estimating)


def parts_of(sizes: Sequence[int], shape: BatchShape) -> Iterator[list[int]]:
    """Positions to count together: few, but enough to fill batches where these have one size."""
    if len(set(sizes)) == 1 and sizes[0] > 0:
        together = shape.images_together(sizes[0])
        for start in range(0, len(sizes), together):
            yield list(range(start, min(start + together, len(sizes))))
        return
    wanted = shape.batch_blocks * STEP * (BATCHES_TOGETHER if shape.compiled else 1)
    part, asked = list[int](), 0
    for position, size in enumerate(sizes):
        part.append(position)
        asked += size
        if asked >= wanted:
            yield part
            part, asked = [], 0
    if part:
        yield part
