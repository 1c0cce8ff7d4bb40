"""Certified accuracies of a run in a few lines of plain text, for a terminal."""

from collections.abc import Sequence

from sween.records import Certificate, format_radius
from sween.report.rows import build_rows
from sween.report.tables import percentage, plain_number

WIDTH = 80


def summarise(certificates: Sequence[Certificate], *, decided: Sequence[float] = ()) -> str:
    """Certified accuracy in percent and ACR of each model, over all its images.

    Abstentions count as 0, and the ACR is rounded down. Columns in which nothing is certified are
    left out and long names shortened, so that no line is longer than WIDTH.

    Args:
        certificates: of one or more models, all on the same images.
        decided: the radii that the sampling was to decide. Then these are the columns, and there is
            no ACR: fewer samples were drawn than the ACR would need.
    """
    rows = build_rows(certificates, radii=decided or None)
    largest = max(certificate.radius_if_correct for certificate in certificates)
    radii = rows[0].radii
    shown = [place for place, radius in enumerate(radii) if decided or radius <= largest] or [0]
    heading = ["model", *(plain_number(radii[place]) for place in shown)]
    lines = [heading + ([] if decided else ["ACR"]) + ["abstain"]]
    for row in rows:
        cells = [row.model, *(percentage(row.accuracies[place]) for place in shown)]
        cells += [] if decided else [format_radius(row.acr)]
        lines.append([*cells, percentage(row.abstention or 0.0)])
    where = "at the radii decided" if decided else "at l2 radius"
    title = f"certified accuracy in % {where}, over {rows[0].images} images:"
    return "\n".join([title, *_aligned(lines)]) + "\n"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    first = min(widths[0], max(8, WIDTH - sum(widths[1:]) - gap * (len(widths) - 1)))
    return [
        (" " * gap).join([_shortened(name, first).ljust(first), *map(str.rjust, cells, widths[1:])])
        for name, *cells in lines
    ]


def _shortened(name: str, length: int) -> str:
    """A name in that many characters, its beginning and end kept."""
    tail = (length - 2) // 2
    return name if len(name) <= length else f"{name[: length - 2 - tail]}..{name[-tail:]}"
