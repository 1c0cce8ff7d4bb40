"""Votes: asked for, counted on the device while the host goes on, and as they come back."""

import dataclasses
from collections.abc import Sequence

import torch

from sween.bounds.scores import SCORE_STEPS, pairs_of
from sween.engine.noise import Job
from sween.interleave import Steps, fetched, sent
from sween.seeding import NOISE_BLOCK


@dataclasses.dataclass(frozen=True)
class Asked:
    """Votes on noisy copies of a set of images.

    Attributes:
        images: (N, C, H, W) on the members' device.
        examples: N keys of the noise, usually the images' indices in their data set.
        purpose: `selection`, `estimation` or `prediction`; different ones are independent.
        sizes: noisy copies of each image.
        first: the noise block to begin with, for each image; 0 when None.
        scored: a class of each image whose probabilities are collected too; for one ensemble
            without an exit.
    """

    images: torch.Tensor
    examples: Sequence[int]
    purpose: str
    sizes: Sequence[int]
    first: Sequence[int] | None = None
    scored: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class ImageVotes:
    """One classifier's votes on one image, and the member evaluations they took.

    `drawn` votes were asked for; exact noise may, very rarely, leave one without an answer.
    `scores` is the histogram of one class's probability, where it was asked for.
    """

    counts: tuple[int, ...]
    evaluations: int
    drawn: int
    scores: tuple[int, ...] | None = None

    def __add__(self, other: "ImageVotes") -> "ImageVotes":
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return ImageVotes(counts, self.evaluations + other.evaluations, self.drawn + other.drawn)


@dataclasses.dataclass(frozen=True)
class Votes:
    """counts (V, N, M) and evaluations (V, N) of V classifiers on N images, and votes drawn (N)."""

    counts: torch.Tensor
    evaluations: torch.Tensor
    drawn: Sequence[int]
    scores: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.drawn)

    def of(self, voter: int, position: int) -> ImageVotes:
        counts = tuple(self.counts[voter, position].tolist())
        scores = None if self.scores is None else pairs_of(self.scores[position].tolist())
        evaluations = int(self.evaluations[voter, position])
        return ImageVotes(counts, evaluations, self.drawn[position], scores)


class Tally:
    """Running counts of V classifiers on N images among M classes, and scores of one class of each.

    `missing` votes are still to be added; `votes` are there once they were read.

    Args:
        asked: the votes.
        voters: V.
        classes: M.
    """

    def __init__(self, asked: Asked, *, voters: int, classes: int) -> None:
        self.asked = asked
        self.missing = sum(asked.sizes)
        self.votes: Votes | None = None
        images, device, scored = len(asked.images), asked.images.device, asked.scored
        self.shape = (voters, images, classes)
        self.counts = torch.zeros(voters * images * classes, dtype=torch.long, device=device)
        self.evaluations = torch.zeros(voters * images, dtype=torch.long, device=device)
        size = images if scored is not None else 0
        self.scores = torch.zeros(size, SCORE_STEPS + 1, dtype=torch.long, device=device)
        self.scored = sent(torch.tensor(scored or [], dtype=torch.long), device)

    def add(
        self,
        labels: torch.Tensor,
        evaluations: torch.Tensor,
        jobs: Sequence[Job],
        valid: torch.Tensor | None,
    ) -> None:
        """Count labels and evaluations (V, B) of the jobs' rows, NOISE_BLOCK to a job."""
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
        """Count each row's probability of its image's class, rounded down to a step."""
        owners, drawn = _rows(jobs, probabilities.device)
        counted = drawn if valid is None else drawn * valid
        own = probabilities.double().gather(1, self.scored[owners][:, None])[:, 0]
        # Weighted sums of softmaxes may exceed 1 by a rounding.
        bins = (own * SCORE_STEPS).floor().clamp(0, SCORE_STEPS).long()
        self.scores.view(-1).scatter_add_(0, owners * (SCORE_STEPS + 1) + bins, counted)

    def read(self, finite: torch.Tensor) -> Steps[torch.Tensor]:
        """Bring the votes to the host, and whether all of them came from finite numbers."""
        counts, evaluations, scores, finite = yield from fetched(
            self.counts, self.evaluations, self.scores, finite
        )
        self.votes = Votes(
            counts.view(self.shape),
            evaluations.view(self.shape[:2]),
            list(self.asked.sizes),
            None if self.asked.scored is None else scores,
        )
        return finite


def drawn_rows(jobs: Sequence[Job]) -> list[int]:
    """The rows of the jobs that count."""
    return [place * NOISE_BLOCK + row for place, job in enumerate(jobs) for row in range(job.used)]


def _rows(jobs: Sequence[Job], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For every row of the jobs, the position of its image, and 1 where it counts."""
    table = sent(torch.tensor([[job.position, job.used] for job in jobs]), device)
    within = torch.arange(NOISE_BLOCK, device=device)
    drawn = (within < table[:, 1:]).flatten().long()
    return table[:, :1].expand(-1, NOISE_BLOCK).flatten(), drawn
