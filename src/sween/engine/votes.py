"""Votes: requested, counted on the device, and read back by voter name."""

import dataclasses
import functools
from collections.abc import Sequence

import torch

from sween.bounds.scores import SCORE_STEPS, pairs_of
from sween.engine.noise import Job
from sween.errors import BadInput
from sween.interleave import Steps, to_device_async, to_host_async
from sween.sampling.votes import ImageVotes
from sween.seeding import NOISE_BLOCK


@dataclasses.dataclass(frozen=True)
class VoteRequest:
    """Votes on noisy copies of a set of images.

    Attributes:
        images: (N, C, H, W) on the members' device.
        examples: N noise keys, usually the images' indices in their data set.
        purpose: `selection`, `estimation` or `prediction`; noise of different purposes is
            independent.
        sizes: noisy copies per image; a single number applies to all images.
        first: the first noise block of each image; 0 when None.
        scored: for each image a class whose probabilities are collected as well; only for a single
            ensemble without an exit.

    Example:
        See `VoteEngine`.
    """

    images: torch.Tensor
    examples: Sequence[int]
    purpose: str
    sizes: Sequence[int]
    first: Sequence[int] | None = None
    scored: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sizes, int):
            object.__setattr__(self, "sizes", [self.sizes] * len(self.images))
        for name in ("examples", "sizes", "first", "scored"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.images):
                raise BadInput(
                    name,
                    expected=f"one number for each of {len(self.images)} images",
                    got=len(given),
                    fix="pass as many numbers as images",
                )


class Votes:
    """The votes of every voter on N images.

    Args:
        voters: V names.
        counts: (V, N, M) on the host.
        evaluations: (V, N) member evaluations.
        drawn: votes requested on each of the N images.
        scores: (N, steps) histograms of one class's probability, or None.

    Example:
        See `VoteEngine`.
    """

    def __init__(
        self,
        voters: Sequence[str],
        counts: torch.Tensor,
        evaluations: torch.Tensor,
        drawn: Sequence[int],
        scores: torch.Tensor | None = None,
    ) -> None:
        self.voters, self.counts = tuple(voters), counts
        self.evaluations, self.drawn, self.scores = evaluations, drawn, scores

    def __len__(self) -> int:
        return len(self.drawn)

    def of(self, voter: str, image: int) -> ImageVotes:
        """One voter's votes on the image at that position of the request."""
        place = self.voters.index(voter)
        counts, evaluations = self._lists
        scores = None if self.scores is None else pairs_of(self.scores[image].tolist())
        return ImageVotes(
            tuple(counts[place][image]), evaluations[place][image], self.drawn[image], scores
        )

    @functools.cached_property
    def _lists(self) -> tuple[list[list[list[int]]], list[list[int]]]:
        """Counts and evaluations; elements of a tensor are slow to read one by one."""
        return self.counts.tolist(), self.evaluations.tolist()

    def by_voter(self, image: int) -> dict[str, ImageVotes]:
        """The votes on one image, by voter name."""
        return {voter: self.of(voter, image) for voter in self.voters}


class Tally:
    """Running counts of a request on the device.

    `missing` is the number of votes still to be added; `votes` is None until they are read back.

    Args:
        request: the votes to count.
        voters: V names.
        classes: M.
    """

    def __init__(self, request: VoteRequest, *, voters: Sequence[str], classes: int) -> None:
        self.request, self.voters = request, voters
        self.missing = sum(request.sizes)
        self.votes: Votes | None = None
        images, device, scored = len(request.images), request.images.device, request.scored
        self.shape = (len(voters), images, classes)
        cells = len(voters) * images
        self.counts = torch.zeros(cells * classes, dtype=torch.long, device=device)
        self.evaluations = torch.zeros(cells, dtype=torch.long, device=device)
        size = images if scored is not None else 0
        self.scores = torch.zeros(size, SCORE_STEPS + 1, dtype=torch.long, device=device)
        self.scored = to_device_async(torch.tensor(scored or [], dtype=torch.long), device)

    def add(
        self,
        labels: torch.Tensor,
        evaluations: torch.Tensor,
        jobs: Sequence[Job],
        valid: torch.Tensor | None,
    ) -> None:
        """Count labels and evaluations (V, B) of the jobs' rows, NOISE_BLOCK rows per job."""
        self.missing -= sum(job.used for job in jobs)
        voters, images, classes = self.shape
        owners, drawn = _rows(jobs, labels.device)
        counted = drawn if valid is None else drawn * valid
        cells = torch.arange(voters, device=labels.device)[:, None] * images + owners
        self.counts.scatter_add_(
            0, (cells * classes + labels).flatten(), counted.expand(voters, -1).flatten()
        )
        self.evaluations.scatter_add_(0, cells.flatten(), (evaluations * drawn).flatten())

    def add_scores(
        self, probabilities: torch.Tensor, jobs: Sequence[Job], valid: torch.Tensor | None
    ) -> None:
        """Count each row's probability of its image's scored class, rounded down to a step."""
        owners, drawn = _rows(jobs, probabilities.device)
        counted = drawn if valid is None else drawn * valid
        own = probabilities.double().gather(1, self.scored[owners][:, None])[:, 0]
        # Weighted sums of softmaxes may exceed 1 by a rounding error.
        bins = (own * SCORE_STEPS).floor().clamp(0, SCORE_STEPS).long()
        self.scores.view(-1).scatter_add_(0, owners * (SCORE_STEPS + 1) + bins, counted)

    def read(self, finite: torch.Tensor) -> Steps[torch.Tensor]:
        """Copy the votes to the host; returns there whether all outputs behind them were finite."""
        counts, evaluations, scores, finite = yield from to_host_async(
            self.counts, self.evaluations, self.scores, finite
        )
        self.votes = Votes(
            self.voters,
            counts.view(self.shape),
            evaluations.view(self.shape[:2]),
            list(self.request.sizes),
            None if self.request.scored is None else scores,
        )
        return finite


def drawn_rows(jobs: Sequence[Job]) -> list[int]:
    """The rows of the jobs whose draws count."""
    return [place * NOISE_BLOCK + row for place, job in enumerate(jobs) for row in range(job.used)]


def _rows(jobs: Sequence[Job], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For every row of the jobs, the position of its image, and 1 if the row counts, else 0."""
    table = to_device_async(torch.tensor([[job.position, job.used] for job in jobs]), device)
    within = torch.arange(NOISE_BLOCK, device=device)
    drawn = (within < table[:, 1:]).flatten().long()
    return table[:, :1].expand(-1, NOISE_BLOCK).flatten(), drawn
