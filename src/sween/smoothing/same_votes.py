"""A run resumes only if an image that has its votes already gets the same votes again."""

from collections.abc import Mapping, Sequence

from sween.engine import VoteEngine
from sween.errors import BadInput
from sween.records import Certificate
from sween.runs.pilots import PilotVotes
from sween.sampling import CertifySettings
from sween.sampling.strategy import Plan
from sween.smoothing import pipeline
from sween.smoothing.images_ahead import ImageSource

MOVED_VOTES = 0.002
"""The share of votes that rounding on another device may move."""


def refuse_other_votes(
    rows: Sequence[Certificate],
    engine: VoteEngine,
    source: ImageSource,
    positions: Sequence[int],
    settings: CertifySettings,
    plans: Mapping[int, Plan],
) -> None:
    """Refuse to resume if an image that is already certified gets other votes now.

    The fingerprint does not cover everything that a module may read: attributes, hooks, code. So
    one image is certified again, the last that used forward passes of this shape. Another device
    may round a few votes in a thousand differently.
    """
    stored = [row for row in rows if row.forward_rows == engine.forward_rows]
    if not stored:
        return
    index = stored[-1].index
    (again,) = pipeline.certify([engine], source, positions, settings, left=[index], plans=plans)
    found = {row.model: row for row in again}
    for row in stored:
        if row.index == index:
            for name in ("selection_counts", "estimation_counts"):
                _refuse_moved(row, getattr(row, name), getattr(found[row.model], name))


def refuse_other_pilots(
    rows: Sequence[PilotVotes],
    engine: VoteEngine,
    source: ImageSource,
    settings: CertifySettings,
) -> None:
    """The same for pilot votes, with the last image that has some."""
    if rows:
        index = rows[-1].index
        (again,) = pipeline.count_pilots(engine, source, [index], settings)
        for row in rows:
            if row.index == index:
                _refuse_moved(row, row.selection_counts, again[row.model].counts)


def _refuse_moved(
    row: Certificate | PilotVotes, recorded: Sequence[int], found: Sequence[int]
) -> None:
    if _moved_share(recorded, found) > MOVED_VOTES:
        raise BadInput(
            f"votes of {row.model} on image {row.index}",
            expected=f"{list(recorded)}, as recorded",
            got=f"{list(found)}",
            fix="the model's code, hooks or attributes, or the images, have changed: restore "
            "them, or choose another folder",
        )


def _moved_share(one: Sequence[int], other: Sequence[int]) -> float:
    """The largest change of a class's share of votes, beyond what different sizes explain."""
    sizes = [max(1, sum(own)) for own in (one, other)]
    change = max(abs(a / sizes[0] - b / sizes[1]) for a, b in zip(one, other, strict=True))
    rounding = 2 / min(sizes)
    sampling = 0.0 if sizes[0] == sizes[1] else 4 / min(sizes) ** 0.5
    return change - rounding - sampling
