"""Confidence intervals of percentages, in words: what so many images say of others like them."""

import math
from collections.abc import Sequence

from sween.evaluation import Share
from sween.report.rows import Row
from sween.report.tables import percentage

FEW_IMAGES = 100
"""Below so many a percentage alone misleads: its interval is shown beside it."""

MOST_LISTED = 8
"""Different percentages that a sentence can name."""


def images_counted(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"


def ends_in_percent(share: Share) -> tuple[str, str]:
    """The ends with one decimal, rounded outwards."""
    return f"{math.floor(1000 * share.low) / 10:.1f}", f"{math.ceil(1000 * share.high) / 10:.1f}"


def whole_percents(share: Share) -> str:
    """The ends in whole percent, rounded outwards."""
    return f"{math.floor(100 * share.low)}–{math.ceil(100 * share.high)}"


def reach(shares: Sequence[Share]) -> str:
    """How far the widest interval reaches to one side, in percentage points, rounded up."""
    sides = (max(one.value - one.low, one.high - one.value) for one in shares)
    return f"{math.ceil(1000 * max(sides)) / 10:.1f}"


def shares_of(rows: Sequence[Row]) -> list[Share]:
    """The certified accuracies of all models; AVG and UE are no shares of images."""
    return [share for row in rows for share in row.shares or ()]


def intervals_in_words(rows: Sequence[Row]) -> str:
    """About the certified accuracies of one run: each interval where few are needed, or the widest.

    Args:
        rows: the table of one run.
    """
    shares, count = shares_of(rows), rows[0].scores.count
    images = images_counted(count)
    different = {percentage(one.value): one for one in sorted(shares)}
    if count >= FEW_IMAGES or len(different) > MOST_LISTED:
        return (
            f"With {images}, the 95% confidence intervals (Clopper-Pearson) of these accuracies "
            f"reach at most {reach(shares)} percentage points to either side; table.csv has each."
        )
    listed = ", ".join(
        f"{text} has {' to '.join(ends_in_percent(one))}" for text, one in different.items()
    )
    return (
        f"With only {images}, the 95% confidence intervals (Clopper-Pearson) of these accuracies "
        f"are wide: {listed}."
    )
