"""Soft votes: the mean probability of a class is bounded, not its share of votes.

Another smoothed classifier, with a fixed number of samples and Cohen's radius; see
`sween.bounds.scores`.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sween.bounds.decision import decide_soft
from sween.bounds.scores import SCORE_STEPS
from sween.errors import BadInput
from sween.records import Certificate
from sween.sampling.fixed import Fixed
from sween.sampling.settings import CertifySettings
from sween.sampling.strategy import (
    Answer,
    Drawing,
    Request,
    VoteSource,
    draw_selection,
    parts_of,
    pilot,
)
from sween.sampling.votes import Drawn, VotePair


class Soft(Fixed):
    """Histograms of the selected class's probability over the pilot draws and over fresh ones."""

    votes = "soft"
    several_voters = False

    def check(self, settings: CertifySettings) -> Mapping[str, Any]:
        if settings.bound != "cohen":
            raise BadInput(
                "votes soft", expected="bound cohen", got=settings.bound, fix="use the cohen bound"
            )
        return {}

    def check_voters(self, settings: CertifySettings, exits: Mapping[str, str]) -> None:
        super().check_voters(settings, exits)
        for exit in exits.values():
            if exit != "none":
                raise BadInput(
                    "votes soft",
                    expected="no exit: a mean needs every member",
                    got=exit,
                    fix="use no exit",
                )

    def votes_per_image(self, settings: CertifySettings) -> int:
        return 2 * settings.n0 + settings.n  # the pilot's noise is evaluated twice

    def draw(self, source: VoteSource) -> Drawing:
        """Pilot votes choose the class, whose scores on pilot and fresh draws are collected."""
        n, model = source.settings.n, source.model
        selection, selecting = draw_selection(source)
        classes = [int(np.argmax(votes[model].counts)) for votes in selection]
        # The pilot's noise again, now that the class to score is known.
        scored = dataclasses.replace(pilot(source), scored=classes)
        parts = list(parts_of([n] * len(source), source.shape))
        requests = (
            Request("estimation", part, [n] * len(part), scored=[classes[i] for i in part])
            for part in parts
        )
        counted = source.count(itertools.chain([scored], requests))
        again, took_again = next(counted)
        for part, (fresh, took) in zip(parts, counted, strict=True):
            for position, votes in zip(part, fresh, strict=True):
                # Keep the counts of the first pass, which chose the class.
                counts = selection[position][model].counts
                chosen = dataclasses.replace(again[position][model], counts=counts)
                yield Drawn({model: chosen}, votes, selecting + took_again + took)

    def decide(
        self, votes: Sequence[VotePair], settings: CertifySettings, sigma: float
    ) -> list[Answer]:
        return [
            (
                decide_soft(
                    pair.selection.counts,
                    pair.selection.scores or (),
                    pair.estimation.scores or (),
                    n=pair.estimation.drawn,
                    alpha=settings.alpha,
                    sigma=sigma,
                ),
                None,
            )
            for pair in votes
        ]

    def problems(self, rows: Sequence[Certificate], settings: CertifySettings) -> list[list[str]]:
        sizes = super().problems(rows, settings)
        return [own + _contradictions(row) for own, row in zip(sizes, rows, strict=True)]


def _contradictions(row: Certificate) -> list[str]:
    """Contradictions between scores and votes on the same draws.

    A class with probability above 1/2 gets the vote, and the class that gets it has probability at
    least 1/M. Scores are rounded down to a bin, and probabilities sum to 1 up to rounding.
    """
    problems = list[str]()
    classes = len(row.selection_counts)
    candidate = int(np.argmax(row.selection_counts))
    for name in ("selection", "estimation"):
        pairs = getattr(row, f"{name}_scores") or ()
        votes = getattr(row, f"{name}_counts")[candidate]
        bins, counts = pairs[::2], pairs[1::2]
        if list(bins) != sorted(set(bins)) or min(counts, default=1) < 1:
            problems.append(f"{name}_scores are not a histogram as sween writes it")
            continue
        scores = list(zip(bins, counts, strict=True))
        above = sum(count for bin_, count in scores if bin_ > SCORE_STEPS // 2)
        if above > votes:
            problems.append(
                f"{name}_scores have {above} above 1/2, but {votes} votes are for class {candidate}"
            )
        least = int(SCORE_STEPS * (1 / classes - 1e-5))
        enough = sum(count for bin_, count in scores if bin_ >= least)
        if votes > enough:
            problems.append(
                f"{votes} votes are for class {candidate}, but {name}_scores have only "
                f"{enough} of 1/{classes} or more"
            )
    return problems
