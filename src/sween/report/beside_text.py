"""A run beside a published log, in words and as a table."""

import decimal

from sween.records import format_radius
from sween.report.beside import Interval, LogComparison
from sween.report.tables import (
    Cell,
    Column,
    Table,
    make_table,
    markdown,
    markdown_text,
    percentage,
    plain_number,
)


def comparison_section(comparison: LogComparison) -> str:
    """The comparison as a section: a table of both and two sentences.

    Accuracies are percentages. The model's ACR is rounded down, as everywhere; an interval's ends
    are rounded outwards.
    """
    *left_out, said = comparison_notes(comparison)
    title = markdown_text(comparison_title(comparison))
    parts = [f"### {title}\n", markdown(comparison_rows(comparison))]
    notes = [f"**{markdown_text(note)}**\n" for note in left_out]
    return "\n".join([*parts, *notes, f"{markdown_text(said)}\n"])


def comparison_title(one: LogComparison) -> str:
    """For people."""
    return f"{one.model} beside {one.log}"


def comparison_rows(one: LogComparison) -> Table:
    """Both as rows of a table; a value of the log is the middle of its interval, for sorting."""
    radii = [plain_number(radius) for radius in one.radii]
    mine = [
        Cell(one.model, one.model),
        *(Cell(percentage(share), share) for share in one.accuracies),
        Cell(format_radius(one.acr), one.acr),
        Cell(f"{one.model_further:,}", one.model_further),
    ]
    theirs = [
        Cell(f"{one.log} (log)", one.log),
        *(Cell(_percentages(ends), sum(ends) / 2) for ends in one.log_accuracies),
        Cell(_radii(one.log_acr), sum(one.log_acr) / 2),
        Cell(f"{one.log_further:,}", one.log_further),
    ]
    columns = [Column("Model", "Model")]
    columns += [Column(heading, heading, str) for heading in (*radii, "ACR", "further on")]
    fields = [column.field for column in columns]
    records = [dict(zip(fields, cells, strict=True)) for cells in (mine, theirs)]
    return make_table("beside", comparison_title(one), columns, records)


def comparison_notes(one: LogComparison) -> list[str]:
    """What is to be said about the two; first, where there are some, which images are left out."""
    notes = [f"{_difference_sentence(one)} {_images_sentence(one)} {_noise_sentence(one)}"]
    if one.only_model or one.only_log:
        notes.insert(
            0,
            f"Common images only: {one.only_model:,} of {one.model} and {one.only_log:,} of the "
            "log are left out.",
        )
    return notes


def _difference_sentence(one: LogComparison) -> str:
    difference = (
        f"is {one.difference.low:+.3f}"
        if one.difference.low == one.difference.high
        else f"is between {_signed(one.difference)}, whatever its printed radii were rounded from"
    )
    verdict = "excludes" if one.excludes_zero else "includes"
    return (
        f"On {one.count:,} common images (indices {one.indices[0]}..{one.indices[-1]}) the ACR of "
        f"{one.model} minus that of the log {difference}, with a {100 * one.confidence:g}% paired "
        f"bootstrap interval, rounding included, from {_signed(one.bootstrap, ' to ')}, which "
        f"{verdict} zero."
    )


def _images_sentence(one: LogComparison) -> str:
    text = (
        f"{one.model} certifies {one.model_further:,} images further than the log, the log "
        f"{one.log_further:,}, by more than the rounding"
    )
    if one.same_prediction is None:
        return f"{text}; the log keeps no predictions to compare."
    share = percentage(one.same_prediction / one.count)
    return f"{text}; they give the same answer on {one.same_prediction:,} ({share}%)."


def _noise_sentence(one: LogComparison) -> str:
    theirs = "is not in it" if one.log_sigma is None else f"was said to be {one.log_sigma:g}"
    return f"The noise level of {one.model} is {plain_number(one.sigma)}; that of the log {theirs}."


def _percentages(interval: Interval) -> str:
    low, high = percentage(interval.low), percentage(interval.high)
    return low if low == high else f"{low} to {high}"


def _radii(interval: Interval) -> str:
    if interval.low == interval.high:
        return format_radius(interval.low)
    return f"{format_radius(interval.low)} to {_rounded(interval.high, decimal.ROUND_CEILING):f}"


def _signed(interval: Interval, between: str = " and ") -> str:
    ends = (
        _rounded(interval.low, decimal.ROUND_FLOOR),
        _rounded(interval.high, decimal.ROUND_CEILING),
    )
    return between.join(f"{end:+f}" if end else "0.000" for end in ends)


def _rounded(value: float, rounding: str) -> decimal.Decimal:
    return decimal.Decimal(repr(value)).quantize(decimal.Decimal("0.001"), rounding=rounding)
