"""Votes on images as the statistics see them: integers, with no torch."""

import dataclasses
from collections.abc import Mapping
from typing import Self

from sween.records import Certificate


@dataclasses.dataclass(frozen=True)
class ImageVotes:
    """One voter's votes on one image, and the member evaluations they took.

    `drawn` votes were requested; exact noise may, very rarely, leave a draw without a vote.
    `scores` is the histogram of one class's probability, if requested.
    """

    counts: tuple[int, ...]
    evaluations: int
    drawn: int
    scores: tuple[int, ...] | None = None

    def __add__(self, other: Self) -> "ImageVotes":
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return ImageVotes(counts, self.evaluations + other.evaluations, self.drawn + other.drawn)


@dataclasses.dataclass(frozen=True)
class VotePair:
    """Selection votes choose the class, estimation votes bound its probability."""

    selection: ImageVotes
    estimation: ImageVotes

    @classmethod
    def of_row(cls, row: Certificate) -> Self:
        """The votes that a certificate records."""
        drawn = row.samples - row.n0
        return cls(
            ImageVotes(row.selection_counts, 0, row.n0, row.selection_scores),
            ImageVotes(row.estimation_counts, 0, drawn, row.estimation_scores),
        )


ByVoter = Mapping[str, ImageVotes]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Every voter's votes on one image, and the seconds they took."""

    selection: ByVoter
    estimation: ByVoter
    seconds: float

    def of(self, voter: str) -> VotePair:
        return VotePair(self.selection[voter], self.estimation[voter])
