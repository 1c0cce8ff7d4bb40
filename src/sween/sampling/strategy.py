"""The interface of a sampling strategy: how votes are spent on images, and what they prove.

A strategy is one object in one file. It checks its settings, draws votes, decides what they
certify, and checks whether recorded rows are what it would have drawn. Once registered, it is
available in the Python API, the command line and `sween verify`. No torch here: votes come from a
`VoteSource`.
"""

import abc
import dataclasses
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sween.bounds.anytime import STEP
from sween.bounds.binomial import Floats
from sween.bounds.decision import Decision, decide_each
from sween.errors import BadInput, UnknownName
from sween.records import Certificate
from sween.registry import Registry
from sween.sampling.votes import ByVoter, Drawn, VotePair

if TYPE_CHECKING:
    from sween.sampling.settings import CertifySettings

BATCHES_TOGETHER = 5
"""Batches of first votes whose images are processed together on a GPU: when few of them are left,
or when they ask for different numbers of votes, forward passes must still be full."""

Drawing = Generator[Drawn, None, None]
"""The votes on each image of a group, in order. Close the generator to stop early."""

Answer = tuple[Decision, dict[str, bool] | None]
"""What the votes prove, and which of the requested radii are certified."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Votes on some images of a group, given by position; see `sween.engine.VoteRequest`."""

    purpose: str
    positions: Sequence[int]
    sizes: Sequence[int]
    first: Sequence[int] | None = None
    scored: Sequence[int] | None = None


class BatchShape(Protocol):
    """What a strategy may know about the engine: how many images fill its batches."""

    @property
    def compiled(self) -> bool:
        """Whether all batches have one size."""
        ...

    @property
    def batch_blocks(self) -> int:
        """Noise blocks per batch."""
        ...

    def images_together(self, n: int) -> int:
        """How many images fill whole batches with n votes each."""
        ...


class VoteSource(Protocol):
    """Votes on a group of images.

    Attributes:
        settings: of the sampling.
        sigma: noise level.
        model: name of the voter to certify; any other voters see the same noise.
        shape: of the engine's batches.
        plans: for each image the size chosen by `SamplingStrategy.plan`, with its pilot votes.
    """

    settings: "CertifySettings"
    sigma: float
    model: str
    shape: BatchShape
    plans: Sequence["Plan"] | None

    def __len__(self) -> int: ...

    def count(self, requests: Iterable[Request]) -> Iterator[tuple[list[ByVoter], float]]:
        """For each request, the votes on each of its images and the seconds per image."""
        ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """One image's share of a plan for all images: its number of votes, and its pilot votes.

    If memory runs out after planning, the estimation votes come from smaller forward passes than
    the pilot's. That is sound: the pilot only chooses the class and the number of votes.
    """

    size: int
    pilot: ByVoter


class SamplingStrategy(abc.ABC):
    """How votes are spent on images. Stateless; see the module's docstring.

    Example:
        See `strategy_of`.
    """

    name: ClassVar[str]
    votes: ClassVar[str] = "hard"
    option: ClassVar[str | None] = None
    """The setting that only this strategy has."""
    default_n0: ClassVar[int] = 100
    several_voters: ClassVar[bool] = False
    """Whether members and variants can be certified in the same pass, which requires that all of
    them need the same votes."""
    any_bound: ClassVar[bool] = False
    """Whether bounds other than Cohen's are allowed."""
    planned: ClassVar[bool] = False
    """Whether sizes are planned for all images together, from their pilot votes."""

    def check(self, settings: "CertifySettings") -> Mapping[str, Any]:
        """Refuse settings that do not work; returns normalised values to store in their place."""
        return {}

    def check_voters(self, settings: "CertifySettings", exits: Mapping[str, str]) -> None:
        """Refuse voters (name: exit) that cannot be certified together."""
        if settings.bound != "cohen" and not self.any_bound:
            # Sizes are chosen for Cohen's radius. It would be sound, so old rows still verify.
            raise BadInput(
                "bound",
                expected=f"cohen with {self.name}",
                got=settings.bound,
                fix="use the cohen bound; its rows record the two-class radius too",
            )
        if len(exits) > 1 and not self.several_voters:
            what = "votes soft" if self.votes == "soft" else f"sampling {self.name}"
            raise BadInput(
                what,
                expected="one classifier",
                got=f"{len(exits)}: {', '.join(exits)}",
                fix="certify one model with one exit, or use hard votes with sampling fixed",
            )

    def votes_per_image(self, settings: "CertifySettings") -> int | None:
        """Noisy copies that every image takes, if that is known beforehand; for progress."""
        return None

    def most_samples(self, settings: "CertifySettings") -> int | None:
        """Noisy copies that a whole run never exceeds, whatever its images; None if it depends."""
        return None

    def simulate_samples(
        self,
        probabilities: Floats,
        settings: "CertifySettings",
        *,
        sigma: float,
        images: int,
        generator: np.random.Generator,
    ) -> npt.NDArray[np.int64]:
        """Simulated noisy copies per image, to predict what a run costs.

        Args:
            probabilities: of the selected class, for images drawn from those of the run.
            settings: of the run.
            sigma: noise level.
            images: of the run.
            generator: of the simulated votes.
        """
        votes = self.votes_per_image(settings)
        if votes is None:
            raise BadInput(
                f"sampling {self.name}",
                expected="a strategy whose cost can be predicted",
                got="one without `simulate_samples`",
                fix="measure it on a part of the images",
            )
        return np.full(len(probabilities), votes, np.int64)

    def images_at_once(self, shape: BatchShape, settings: "CertifySettings") -> int:
        """Images per group: enough to fill batches with their first votes."""
        batches = BATCHES_TOGETHER if shape.compiled else 1
        return max(1, batches * shape.batch_blocks * STEP // settings.n0)

    def plan(self, pilots: Sequence[ByVoter], settings: "CertifySettings", model: str) -> list[int]:
        """The number of votes for each image of a run, from all pilot votes; only if `planned`."""
        raise NotImplementedError

    @abc.abstractmethod
    def draw(self, source: VoteSource) -> Drawing:
        """Draw the votes on each image of a group."""

    def decide(
        self, votes: Sequence[VotePair], settings: "CertifySettings", sigma: float
    ) -> list[Answer]:
        """What the votes on each image prove, each with probability at least 1 - alpha.

        By default Cohen et al.'s CERTIFY, which is valid if the number of estimation votes is fixed
        or depends on the selection votes alone.
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
        """The `n` to record in a certificate with `drawn` estimation votes."""
        return drawn

    def problems(self, rows: Sequence[Certificate], settings: "CertifySettings") -> list[list[str]]:
        """For each row, how it differs from what this strategy would have drawn."""
        return [[] for _ in rows]

    def run_problems(
        self, rows: Sequence[Certificate], settings: "CertifySettings"
    ) -> list[list[str]]:
        """For each row of a complete run, how it contradicts the other rows."""
        return [[] for _ in rows]


STRATEGIES = Registry[dict[str, SamplingStrategy]]("sampling", {})
"""All strategies, by name and then by their votes."""


def register_sampling(strategy: SamplingStrategy) -> SamplingStrategy:
    """Register a strategy for `certify`, the command line and `sween verify`.

    Example:
        >>> from sween.sampling import CertifySettings, SamplingStrategy, register_sampling
        >>> from sween.sampling.strategy import draw_estimation, draw_selection
        >>> class Wary(SamplingStrategy):  # twice as many votes where the pilot votes disagree
        ...     name = "wary"
        ...     def draw(self, source):
        ...         selected = draw_selection(source)
        ...         n, n0 = source.settings.n, source.settings.n0
        ...         tops = [max(votes[source.model].counts) for votes in selected[0]]
        ...         sizes = [n if top == n0 else 2 * n for top in tops]
        ...         return draw_estimation(source, sizes, selected)
        >>> strategy = register_sampling(Wary())
        >>> CertifySettings(sampling="wary", n=1000).strategy is strategy
        True
    """
    of_name = STRATEGIES.get(strategy.name, {})
    STRATEGIES.add(strategy.name, {**of_name, strategy.votes: strategy})
    return strategy


def sampling_names() -> tuple[str, ...]:
    """The names of all strategies with hard votes, the default first.

    Example:
        >>> from sween.sampling import sampling_names
        >>> sampling_names()
        ('fixed', 'decide', 'tolerance', 'budget')
    """
    return tuple(name for name, of_name in STRATEGIES.items() if "hard" in of_name)


def sampling_with(option: str) -> str:
    """The names of the strategies with that option."""
    strategies = (own for of_name in STRATEGIES.values() for own in of_name.values())
    return " or ".join(own.name for own in strategies if own.option == option)


def strategy_of(sampling: str, votes: str = "hard") -> SamplingStrategy:
    """The strategy of that name.

    Raises:
        BadInput: there is none of that name, or not with such votes.

    Example:
        >>> from sween.sampling import CertifySettings, strategy_of
        >>> strategy = strategy_of("fixed")
        >>> strategy.votes_per_image(CertifySettings(n0=100, n=1000))
        1100
    """
    of_name = STRATEGIES.find(sampling)
    kinds = {kind for each in STRATEGIES.values() for kind in each}
    if votes not in kinds:
        raise UnknownName("votes", votes, kinds)
    if votes not in of_name:
        raise BadInput(
            f"votes {votes}", expected="sampling fixed", got=sampling, fix="use sampling fixed"
        )
    return of_name[votes]


def pilot(source: VoteSource) -> Request:
    """A request for the selection votes on all images of a group."""
    return Request("selection", range(len(source)), [source.settings.n0] * len(source))


def draw_selection(source: VoteSource) -> tuple[list[ByVoter], float]:
    """The selection votes on all images of a group, and the seconds per image."""
    (counted,) = source.count([pilot(source)])
    return counted


def draw_estimation(
    source: VoteSource, sizes: Sequence[int], selected: tuple[list[ByVoter], float] | None
) -> Drawing:
    """Fresh estimation votes of the given sizes; draws the selection votes first unless given.

    Valid with `decide` at the full alpha: estimation noise has its own keys, so it is independent
    of the selection votes and of any sizes computed from them.
    """
    pilots = [pilot(source)] if selected is None else []  # queued with the others, on a GPU
    parts = list(parts_of(sizes, source.shape))
    requests = (Request("estimation", part, [sizes[i] for i in part]) for part in parts)
    counted = source.count(itertools.chain(pilots, requests))
    selection, selecting = next(counted) if selected is None else selected
    for part, (estimation, estimating) in zip(parts, counted, strict=True):
        for position, votes in zip(part, estimation, strict=True):
            yield Drawn(selection[position], votes, selecting + estimating)


def size_problems(
    rows: Sequence[Certificate], sizes: Sequence[int], reason: str
) -> list[list[str]]:
    """For each row, whether its `n` is not the size that it should have."""
    return [
        [] if row.n == size else [f"n is {row.n}, {reason} {size}"]
        for row, size in zip(rows, sizes, strict=True)
    ]


def parts_of(sizes: Sequence[int], shape: BatchShape) -> Iterator[list[int]]:
    """Positions to count together: few, but enough to fill batches if these have a fixed size."""
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
