"""Consistency of the rows of one image: one label, and votes on the same noise.

Members, weightings and exits of a run see the same noisy copies, so their votes are related draw by
draw. Counts alone still show some of that:

- An exact exit answers as the full ensemble does, and all weight on one member answers as that
  member does: the counts are the same.
- Where all members of positive weight vote for c, a weighted mean of their probabilities is largest
  at c, and so is every partial one, since sums and products round monotonically. Each member misses
  c on n - count_c draws, so the ensemble has at least n - sum_k (n - count_c of member k) votes for
  c. (A class that no member votes for may win a mean: nothing follows from such counts.)
"""

from collections.abc import Iterator, Mapping, Sequence

from sween.records import Certificate
from sween.runs.rows import Finding

ROUNDED_TIES = 1
"""Votes that may go to a lower class if rounding makes a tie of the sums of unanimous members."""

_COUNTS = ("selection_counts", "estimation_counts")

Variants = Mapping[str, tuple[tuple[float, ...], str]]
"""Weights and exit of each ensemble."""


def disagreements(
    certificates: Sequence[Certificate],
    members: Sequence[str],
    exits: Mapping[str, str],
    weights: Mapping[str, tuple[float, ...]],
) -> list[Finding]:
    """Rows that contradict others of their image, in the order of the file.

    Args:
        certificates: of all voters.
        members: that were certified too.
        exits: of every voter.
        weights: of every ensemble.
    """
    images: dict[int, dict[str, int]] = {}
    for place, certificate in enumerate(certificates):
        images.setdefault(certificate.index, {})[certificate.model] = place
    variants = {name: (own, exits[name]) for name, own in weights.items()}
    found = list[Finding]()
    for places in images.values():
        rows = {model: certificates[place] for model, place in places.items()}
        for model, what in _of_one_image(rows, variants, members):
            found.append((places[model], what))
    return sorted(found, key=lambda finding: finding[0])


def _of_one_image(
    rows: Mapping[str, Certificate],
    variants: Variants,
    members: Sequence[str],
) -> Iterator[tuple[str, str]]:
    first = next(iter(rows.values()))
    for model, row in rows.items():
        if row.label != first.label:
            yield model, f"label {row.label} is not the {first.label} of the image's other rows"
        for name in _COUNTS:
            sums = sum(getattr(row, name)), sum(getattr(first, name))
            if sums[0] != sums[1]:
                yield model, f"{name} sum to {sums[0]}, those of {first.model} to {sums[1]}"
    for model, (weights, exit) in variants.items():
        if model not in rows:
            continue
        twin = _twin(model, variants, rows, members)
        if twin is not None:
            yield from _differing(rows[model], rows[twin], exit)
        if members and all(member in rows for member in members):
            voting = [rows[name] for name, w in zip(members, weights, strict=True) if w > 0]
            yield from _against_unanimity(rows[model], voting)


def _twin(
    model: str,
    variants: Variants,
    rows: Mapping[str, Certificate],
    members: Sequence[str],
) -> str | None:
    """Another model of the run that must have the same votes, if any."""
    weights, exit = variants[model]
    for other, (same, exited) in variants.items():
        # Of a full ensemble and one with an exact exit, the latter is reported.
        alike = exit == exited or (exit, exited) == ("exact", "none")
        if other in rows and other != model and same == weights and alike:
            return other
    if members and sorted(weights) == [*[0.0] * (len(weights) - 1), 1.0]:
        member = members[weights.index(1.0)]
        return member if member in rows else None
    return None


def _differing(row: Certificate, twin: Certificate, exit: str) -> Iterator[tuple[str, str]]:
    for name in _COUNTS:
        if getattr(row, name) == getattr(twin, name):
            continue
        if exit == "exact":
            yield row.model, f"{name} with an exact exit are not those of the full ensemble"
        else:
            yield row.model, f"{name} are not those of {twin.model}, which is the same classifier"


def _against_unanimity(
    row: Certificate, members: Sequence[Certificate]
) -> Iterator[tuple[str, str]]:
    for name in _COUNTS:
        counts = getattr(row, name)
        drawn = sum(counts)
        for label, votes in enumerate(counts):
            missed = sum(drawn - getattr(member, name)[label] for member in members)
            if votes < drawn - missed - ROUNDED_TIES:
                yield (
                    row.model,
                    f"{name} have {votes} votes for class {label}, but all members agree on it in "
                    f"at least {drawn - missed} of {drawn}",
                )
