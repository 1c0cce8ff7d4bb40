"""Deriving certificates again from their votes, for each way of sampling. No model, no torch."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sween.bounds.anytime import looks, settled
from sween.bounds.decision import (
    Decision,
    decide,
    decide_each,
    decide_radii_each,
    decide_soft,
)
from sween.bounds.radius import BOUNDS
from sween.bounds.sample_size import size_for_tolerance, sizes_for_budget
from sween.bounds.scores import SCORE_STEPS
from sween.errors import BadInput
from sween.records import Certificate
from sween.smoothing.settings import LARGEST_N, SAMPLING, VOTES

ABOVE, BELOW = 1e-13, 1e-9
"""How far a recorded number may lie above and below the one derived again, relatively: other
versions of the special functions round differently, but never a radius up by more than this."""

LOST_VOTES = 10
"""Of exact noise, in one certificate: one is lost in a million certificates."""

_KNOWN: dict[str, tuple[str, ...]] = {
    "bound": BOUNDS,
    "sampling": SAMPLING,
    "votes": VOTES,
    "noise": ("float32",),
}
"""Values whose meaning this version knows how to derive from the votes."""

Derived = tuple[Decision, dict[str, bool] | None]


def derivation_problems(
    certificates: Sequence[Certificate], config: Mapping[str, Any]
) -> list[list[str]]:
    """For each row, what in it does not follow from its own votes.

    All rows of the same settings are derived together: thousands take no longer than a few.
    """
    problems = [_own_problems(certificate) for certificate in certificates]
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, row in enumerate(certificates):
        if not problems[place] and row.sampling == config["sampling"]:
            size = row.n if row.sampling == "decide" else row.n > 0
            key = (row.votes, row.alpha, row.sigma, row.bound, size)
            alike.setdefault(key, []).append(place)
    for places in alike.values():
        rows = [certificates[place] for place in places]
        try:
            found = [
                [*_differences(row, derived), *sizes, *_score_problems(row)]
                for row, derived, sizes in zip(
                    rows, _derive(rows, config), _size_problems(rows, config), strict=True
                )
            ]
        except (BadInput, TypeError, ValueError, IndexError, OverflowError) as error:
            found = [[str(error)] for _ in rows]
        for place, own in zip(places, found, strict=True):
            problems[place] += own
    return problems


def _own_problems(certificate: Certificate) -> list[str]:
    """What in a row cannot be, whatever its votes prove."""
    problems = []
    drawn = certificate.samples - certificate.n0
    whole = certificate.sampling != "decide"
    # Exact noise may, very rarely, leave a vote without an answer.
    lost = LOST_VOTES if certificate.noise.startswith("exact") else 0
    for name, total, wanted in (
        ("selection_counts", "n0", certificate.n0),
        ("estimation_counts", "n", certificate.n)
        if whole
        else ("estimation_counts", "samples - n0", drawn),
    ):
        counts = getattr(certificate, name)
        if not wanted - lost <= sum(counts) <= wanted:
            problems.append(f"{name} sum to {sum(counts)}, {total} is {wanted}")
        if min(counts, default=0) < 0:
            problems.append(f"{name} has a negative count")
    for name, wanted in (("selection_scores", certificate.n0), ("estimation_scores", drawn)):
        scores = getattr(certificate, name)
        if (scores is not None) != (certificate.votes == "soft"):
            given = "missing" if scores is None else "given"
            problems.append(f"{name} are {given} with {certificate.votes} votes")
        elif scores is not None and not wanted - lost <= sum(scores[1::2]) <= wanted:
            problems.append(f"{name} are of {sum(scores[1::2])} votes, not {wanted}")
    classes = len(certificate.selection_counts), len(certificate.estimation_counts)
    if classes[0] != classes[1] or classes[0] < 2:
        problems.append(f"counts are of {classes[0]} and {classes[1]} classes")
    if whole and drawn != certificate.n:
        problems.append(f"samples {certificate.samples} is not n0 + n")
    if certificate.n > LARGEST_N:
        problems.append(f"n {certificate.n} is above {LARGEST_N}, where bounds are not proven")
    for name, known in _KNOWN.items():
        if name == "noise" and re.fullmatch(r"exact\(levels=[1-9][0-9]*\)", certificate.noise):
            continue
        if getattr(certificate, name) not in known:
            problems.append(f"{name} {getattr(certificate, name)!r} is none of {', '.join(known)}")
    if certificate.decisions is not None and whole:
        problems.append(f"decisions are given where {certificate.sampling} sampling makes none")
    if certificate.seconds < 0:
        problems.append(f"seconds is {certificate.seconds}, below 0")
    return problems


def _score_problems(certificate: Certificate) -> list[str]:
    """Where scores and votes of the same draws contradict each other.

    A class with a probability above 1/2 gets the vote, and a vote needs a probability of 1/M at
    least. Scores are rounded down to a bin, and sums of probabilities are 1 but for a rounding.
    """
    problems = list[str]()
    if certificate.votes != "soft":
        return problems
    classes = len(certificate.selection_counts)
    candidate = int(np.argmax(certificate.selection_counts))
    for name in ("selection", "estimation"):
        pairs = getattr(certificate, f"{name}_scores")
        votes = getattr(certificate, f"{name}_counts")[candidate]
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
                f"{votes} votes are for class {candidate}, but {name}_scores have only {enough} "
                f"of 1/{classes} or more"
            )
    return problems


def _derive(rows: Sequence[Certificate], config: Mapping[str, Any]) -> list[Derived]:
    """The answers of rows that share their settings."""
    first = rows[0]
    if first.votes == "soft":
        return [
            (
                decide_soft(
                    row.selection_counts,
                    row.selection_scores or (),
                    row.estimation_scores or (),
                    n=row.n,
                    alpha=row.alpha,
                    sigma=row.sigma,
                ),
                None,
            )
            for row in rows
        ]
    selection = [row.selection_counts for row in rows]
    estimation = [row.estimation_counts for row in rows]
    drawn = [row.samples - row.n0 for row in rows]
    if first.sampling == "decide":
        return list[Derived](
            decide_radii_each(
                selection,
                estimation,
                config["radii"],
                drawn,
                largest=first.n,
                alpha=first.alpha,
                sigma=first.sigma,
            )
        )
    if first.n == 0:
        return [
            (decide(*counts, alpha=first.alpha, sigma=first.sigma, bound=first.bound), None)
            for counts in zip(selection, estimation, strict=True)
        ]
    decisions = decide_each(
        selection, estimation, drawn, alpha=first.alpha, sigma=first.sigma, bound=first.bound
    )
    return [(decision, None) for decision in decisions]


def _differences(certificate: Certificate, derived: Derived) -> list[str]:
    """What a row says otherwise than its votes."""
    decision, decisions = derived
    problems = []
    if certificate.decisions != decisions:
        problems.append(f"decisions are {certificate.decisions}, the votes give {decisions}")
    for field in dataclasses.fields(decision):
        recorded, again = getattr(certificate, field.name), getattr(decision, field.name)
        if not _same(recorded, again):
            problems.append(f"{field.name} is {recorded}, the votes give {again}")
    return problems


_looks = functools.lru_cache(maxsize=16)(lambda largest: frozenset(looks(largest)))


def _size_problems(rows: Sequence[Certificate], config: Mapping[str, Any]) -> list[list[str]]:
    """Whether as many votes were drawn as the sampling asks for; budgets are judged together."""
    first = rows[0]
    if first.sampling in {"fixed", "decide"}:
        wrong = [row.n != config["n"] for row in rows]
        if any(wrong):
            said = f"the run's config says {config['n']}"
            return [
                [f"n is {row.n}, {said}"] if is_wrong else []
                for row, is_wrong in zip(rows, wrong, strict=True)
            ]
    if first.sampling == "tolerance":
        wanted = [
            size_for_tolerance(
                max(row.selection_counts),
                row.n0,
                tolerance=config["tolerance"],
                largest=config["n"],
                alpha=row.alpha,
            )
            for row in rows
        ]
        return [
            [] if row.n == size else [f"n is {row.n}, the pilot votes ask for {size}"]
            for row, size in zip(rows, wanted, strict=True)
        ]
    if first.sampling == "decide":
        drawn = np.asarray([row.samples - row.n0 for row in rows])
        votes = [row.estimation_counts[int(np.argmax(row.selection_counts))] for row in rows]
        stopped = settled(
            np.asarray(votes),
            drawn,
            config["radii"],
            largest=first.n,
            alpha=first.alpha,
            sigma=first.sigma,
        )
        return [
            []
            if is_settled and size in _looks(first.n)
            else [f"{size} votes were drawn, which is not a valid stopping point"]
            for size, is_settled in zip(drawn.tolist(), stopped, strict=True)
        ]
    return [[] for _ in rows]


def budget_problems(certificates: Sequence[Certificate], config: Mapping[str, Any]) -> list[str]:
    """For each image, whether it got the votes that the pilots of all of them call for."""
    wanted = sizes_for_budget(
        [max(certificate.selection_counts) for certificate in certificates],
        config["n0"],
        budget=config["budget"],
        largest=config["n"],
        alpha=config["alpha"],
    )
    return [
        ""
        if certificate.n == size
        else f"n is {certificate.n}, the pilot votes of all images ask for {size}"
        for certificate, size in zip(certificates, wanted, strict=True)
    ]


def _same(recorded: object, again: float | int | None) -> bool:
    if again is None:
        return recorded is None
    if isinstance(again, int):
        return recorded == again
    if not isinstance(recorded, int | float):
        return False
    return again * (1 - BELOW) <= recorded <= again * (1 + ABOVE)
