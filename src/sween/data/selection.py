"""Which images of a split to work on."""

import itertools
import re
from collections.abc import Sequence

from sween.errors import BadInput

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_FORMS = "positions such as 888:1888, 0:100:5 or 0,5,9"


def parse_indices(
    *, indices: str | None, every: int | None, everything: bool, size: int
) -> list[int]:
    """The selected positions, in the order given.

    Ranges exclude their end, as in Python: `888:1888` is 1,000 images. A range that extends past
    the split is refused, not truncated: a result must cover exactly the images it claims.

    Args:
        indices: comma-separated numbers and `START:STOP[:STEP]` ranges.
        every: take every k-th image, from position 0.
        everything: take all of them.
        size: number of images in the split.

    Example:
        >>> from sween.data import parse_indices
        >>> parse_indices(indices="0,10:13", every=None, everything=False, size=100)
        [0, 10, 11, 12]
        >>> parse_indices(indices=None, every=40, everything=False, size=100)
        [0, 40, 80]
    """
    if size < 1:
        raise BadInput("size", expected="a split with images", got=size, fix="check the data set")
    options = {"`indices`": indices, "`every`": every, "`everything`": everything or None}
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise BadInput(
            "images to use",
            expected=f"exactly one of {', '.join(options)}",
            got=" and ".join(given) or "none of them",
            fix="pass one of them" if not given else f"keep one, e.g. {given[0]}",
        )
    if indices is not None:
        return _parse_list(indices, size)
    if every is not None:
        if every < 1:
            raise BadInput("every", expected="1 or more", got=every, fix="use `every=20`")
        return list(range(0, size, every))
    return list(range(size))


def format_indices(positions: Sequence[int]) -> str:
    """A short text that `parse_indices` reads back to these positions, in this order."""
    parts: list[str] = []
    start = 0
    while start < len(positions):
        stop, step = start + 1, 1
        if stop < len(positions) and positions[stop] > positions[start]:
            step = positions[stop] - positions[start]
            while stop < len(positions) and positions[stop] - positions[stop - 1] == step:
                stop += 1
        if stop - start < 3:
            parts.append(str(positions[start]))
            start += 1
            continue
        tail = "" if step == 1 else f":{step}"
        parts.append(f"{positions[start]}:{positions[stop - 1] + 1}{tail}")
        start = stop
    return ",".join(parts)


def count_indices(text: str) -> int:
    """How many positions a text names, duplicates included, without listing them.

    A damaged file may name a range of a quintillion images.

    Raises:
        BadInput: the text is not of the form that `format_indices` gives.
    """
    return sum(len(_parse_part(part.strip(), 10**18)) for part in text.split(","))


def few_classes_note(
    positions: Sequence[int], labels: Sequence[int], class_names: Sequence[str]
) -> str | None:
    """A warning if the positions cover only a few classes of a split that is ordered by class.

    Image folders are ordered by class: their first images all belong to the first one, and the
    certified accuracy on them is not that of the data set.
    """
    taken = sorted({labels[position] for position in positions})
    possible = min(len(positions), len(class_names))
    if 2 * len(taken) > possible or any(a > b for a, b in itertools.pairwise(labels)):
        return None
    names = ", ".join(class_names[label] for label in taken[:3])
    return (
        f"these {len(positions)} images are of {len(taken)} of {len(class_names)} classes "
        f"({names}{', ...' if len(taken) > 3 else ''}), since the test images are ordered by "
        f"class; `every={max(1, len(labels) // len(positions))}` takes about as many of all classes"
    )


def _parse_list(text: str, size: int) -> list[int]:
    positions: list[int] = []
    seen: set[int] = set()
    for part in text.split(","):
        for position in _parse_part(part.strip(), size):
            if position in seen:
                raise _refusal("each position once", f"{position} twice", "remove the repetition")
            seen.add(position)
            positions.append(position)
    return positions


def _parse_part(part: str, size: int) -> range:
    numbers = part.split(":")
    if len(numbers) > 3 or not all(_NUMBER.fullmatch(number) for number in numbers):
        raise _refusal(_FORMS, repr(part), "use whole numbers from 0, both ends of a range")
    start = int(numbers[0])
    stop = int(numbers[1]) if len(numbers) > 1 else start + 1
    step = int(numbers[2]) if len(numbers) > 2 else 1
    if stop > size:
        raise _refusal(f"positions of a split of {size} images", repr(part), f"stay below {size}")
    if start >= stop or step < 1:
        raise _refusal("a range that starts before it stops", repr(part), "use START:STOP[:STEP]")
    return range(start, stop, step)


def _refusal(expected: str, got: str, fix: str) -> BadInput:
    return BadInput("indices", expected=expected, got=got, fix=fix)
