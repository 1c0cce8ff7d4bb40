"""Re-derives certificates from the votes they record, without a model."""

import dataclasses
import re
from collections.abc import Sequence

from sween.bounds.radius import BOUNDS
from sween.errors import BadInput
from sween.records import Certificate
from sween.sampling.settings import LARGEST_N, VOTES, CertifySettings
from sween.sampling.strategy import Answer, sampling_names
from sween.sampling.votes import VotePair

ABOVE, BELOW = 1e-13, 1e-9
"""Relative tolerance above and below the re-derived number: other versions of the special
functions round differently, but never raise a radius by more than this. A radius near 0 comes from
a probability near 1/2, whose rounding is relative to 1/2: its tolerance is relative to sigma."""

LOST_VOTES = 10
"""The most votes that exact noise may lose in one certificate; it loses one in a million
certificates."""


def derivation_problems(
    certificates: Sequence[Certificate], settings: CertifySettings, sigma: float
) -> list[list[str]]:
    """For each row, what does not follow from its own votes under the run's settings.

    Rows are derived together, which is much faster than one by one.
    """
    problems = [_own_problems(certificate, settings) for certificate in certificates]
    sound = [place for place, own in enumerate(problems) if not own]
    alike = dict[float, list[int]]()
    for place in sound:  # rows with another sigma are refused by the config's check
        alike.setdefault(certificates[place].sigma, []).append(place)
    strategy = settings.strategy
    for own_sigma, places in alike.items():
        rows = [certificates[place] for place in places]
        try:
            answers = strategy.decide([VotePair.of_row(row) for row in rows], settings, own_sigma)
            drawn = strategy.problems(rows, settings)
            found = [
                _differences(row, answer) + own
                for row, answer, own in zip(rows, answers, drawn, strict=True)
            ]
        except (BadInput, TypeError, ValueError, IndexError, OverflowError) as error:
            found = [[str(error)] for _ in rows]
        for place, own in zip(places, found, strict=True):
            problems[place] += own
    return problems


def _own_problems(row: Certificate, settings: CertifySettings) -> list[str]:
    """What is inconsistent in a row, whatever its votes prove."""
    problems = []
    drawn = row.samples - row.n0
    # Exact noise may, very rarely, leave a draw without a vote.
    lost = LOST_VOTES if row.noise.startswith("exact") else 0
    for name, wanted in (("selection", row.n0), ("estimation", drawn)):
        counts, scores = getattr(row, f"{name}_counts"), getattr(row, f"{name}_scores")
        total = "n0" if name == "selection" else "samples - n0"
        if not wanted - lost <= sum(counts) <= wanted:
            problems.append(f"{name}_counts sum to {sum(counts)}, {total} is {wanted}")
        if min(counts, default=0) < 0:
            problems.append(f"{name}_counts has a negative count")
        if (scores is not None) != (row.votes == "soft"):
            given = "missing" if scores is None else "given"
            problems.append(f"{name}_scores are {given} with {row.votes} votes")
        elif scores is not None and not wanted - lost <= sum(scores[1::2]) <= wanted:
            problems.append(f"{name}_scores are of {sum(scores[1::2])} votes, not {wanted}")
    classes = len(row.selection_counts), len(row.estimation_counts)
    if classes[0] != classes[1] or classes[0] < 2:
        problems.append(f"counts are of {classes[0]} and {classes[1]} classes")
    if row.n > LARGEST_N:
        problems.append(f"n {row.n} is above {LARGEST_N}, where bounds are not proven")
    for name, known in (("bound", tuple(BOUNDS)), ("sampling", sampling_names()), ("votes", VOTES)):
        if getattr(row, name) not in known:
            problems.append(f"{name} {getattr(row, name)!r} is none of {', '.join(known)}")
    if not re.fullmatch(r"float32|exact\(levels=[1-9][0-9]*\)", row.noise):
        problems.append(f"noise {row.noise!r} is none of float32, exact(levels=L)")
    if (row.sampling, row.votes) == (settings.sampling, settings.votes):
        n = settings.strategy.recorded_n(settings, drawn)
        if row.n != n:
            problems.append(f"n is {row.n}, samples - n0 is {drawn}, which asks for {n}")
    if row.seconds < 0:
        problems.append(f"seconds is {row.seconds}, below 0")
    return problems


def _differences(row: Certificate, answer: Answer) -> list[str]:
    """Fields of a row that differ from what its votes give."""
    decision, decisions = answer
    problems = []
    if row.decisions != decisions:
        problems.append(f"decisions are {row.decisions}, the votes give {decisions}")
    for field in dataclasses.fields(decision):
        recorded, again = getattr(row, field.name), getattr(decision, field.name)
        scale = row.sigma if field.name.startswith("radius") else 0.0
        if not _same(recorded, again, scale):
            problems.append(f"{field.name} is {recorded}, the votes give {again}")
    return problems


def _same(recorded: object, again: float | int | None, scale: float) -> bool:
    if again is None:
        return recorded is None
    if isinstance(again, int):
        return recorded == again
    if not isinstance(recorded, int | float):
        return False
    above = ABOVE * max(again, scale) if again > 0 else 0.0
    return again * (1 - BELOW) - above <= recorded <= again + above
