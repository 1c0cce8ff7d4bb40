"""Deriving a certificate again from its votes, for each way of sampling. No model, no torch."""

import dataclasses
import re
from typing import Any

from sween.errors import CheckFailed
from sween.records import Certificate
from sween.smoothing.allocation import size_for_tolerance, sizes_for_budget
from sween.smoothing.decision import Decision, decide, decide_radii, decide_soft
from sween.smoothing.radius import BOUNDS
from sween.smoothing.sequence import looks, settled
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


def derivation_problems(certificate: Certificate, config: dict[str, Any]) -> list[str]:
    """What in a row does not follow from its own votes."""
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
    if problems or certificate.sampling != config["sampling"]:
        return problems
    derived, decisions = _derive(certificate, config)
    if certificate.decisions != decisions:
        problems.append(f"decisions are {certificate.decisions}, the votes give {decisions}")
    for field in dataclasses.fields(derived):
        recorded, again = getattr(certificate, field.name), getattr(derived, field.name)
        if not _same(recorded, again):
            problems.append(f"{field.name} is {recorded}, the votes give {again}")
    return problems


def _derive(
    certificate: Certificate, config: dict[str, Any]
) -> tuple[Decision, dict[str, bool] | None]:
    selection, estimation = certificate.selection_counts, certificate.estimation_counts
    if certificate.votes == "soft":
        soft = decide_soft(
            selection,
            certificate.selection_scores or (),
            certificate.estimation_scores or (),
            n=certificate.n,
            alpha=certificate.alpha,
            sigma=certificate.sigma,
        )
        return soft, None
    if certificate.sampling == "decide":
        return decide_radii(
            selection,
            estimation,
            config["radii"],
            n=certificate.samples - certificate.n0,
            largest=certificate.n,
            alpha=certificate.alpha,
            sigma=certificate.sigma,
        )
    derived = decide(
        selection,
        estimation,
        n=certificate.n,
        alpha=certificate.alpha,
        sigma=certificate.sigma,
        bound=certificate.bound,
    )
    return derived, None


def size_problems(certificate: Certificate, config: dict[str, Any]) -> list[str]:
    """Whether as many votes were drawn as the sampling asks for; budgets are judged together."""
    if certificate.sampling in {"fixed", "decide"} and certificate.n != config["n"]:
        return [f"n is {certificate.n}, the run's config says {config['n']}"]
    if certificate.sampling == "tolerance":
        wanted = size_for_tolerance(
            max(certificate.selection_counts),
            certificate.n0,
            tolerance=config["tolerance"],
            largest=config["n"],
            alpha=certificate.alpha,
        )
        if certificate.n != wanted:
            return [f"n is {certificate.n}, the pilot votes ask for {wanted}"]
    if certificate.sampling == "decide":
        drawn, sizes = certificate.samples - certificate.n0, looks(certificate.n)
        count = certificate.estimation_counts[certificate.candidate]
        stopped = drawn in sizes and settled(
            count,
            drawn,
            config["radii"],
            largest=certificate.n,
            alpha=certificate.alpha,
            sigma=certificate.sigma,
        )
        if not stopped:
            return [f"{drawn} votes were drawn, which is no place to stop"]
    return []


def check_budget(certificates: list[Certificate], config: dict[str, Any], file: str) -> None:
    """Every image got the votes that the pilots of all of them call for."""
    wanted = sizes_for_budget(
        [max(certificate.selection_counts) for certificate in certificates],
        config["n0"],
        budget=config["budget"],
        largest=config["n"],
        alpha=config["alpha"],
    )
    for number, (certificate, size) in enumerate(zip(certificates, wanted, strict=True), start=1):
        if certificate.n != size:
            raise CheckFailed(
                f"{file}, line {number} (index {certificate.index}): n is {certificate.n}, the "
                f"pilot votes of all images ask for {size}"
            )


def _same(recorded: object, again: float | int | None) -> bool:
    if again is None:
        return recorded is None
    if isinstance(again, int):
        return recorded == again
    if not isinstance(recorded, int | float):
        return False
    return again * (1 - BELOW) <= recorded <= again * (1 + ABOVE)
