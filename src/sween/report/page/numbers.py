"""Numbers as the page carries them."""

from sween.records import format_radius

UNITS = 10_000
"""Radii travel as whole ten-thousandths, rounded down. A radius r is at least t exactly where its
units are, for every t that is itself whole in units, so the page counts without rounding."""


def in_units(radius: float) -> int:
    """A radius in whole units, never more than it is."""
    return int(format_radius(radius, 4).replace(".", ""))
