"""Alarms: answers that changed inside a certified radius, each by its name."""

from collections.abc import Sequence

from sween.report.attacked import AttackedRun, alarms_of, certificates_of
from sween.report.grid import Cell, Table
from sween.report.measured import MeasuredRun
from sween.runs.attack_outcome import radius_of_label

_HEADINGS = ("attack", "Model", "image", "radius", "distance", "certified", "image kept")
_FIELDS = ("attack", "model", "index", "radius", "distance", "certified_radius", "image_kept")


def alarm_table(attacked: Sequence[AttackedRun], runs: Sequence[MeasuredRun]) -> Table | None:
    """Every alarm; None without any.

    The attacked image is kept in its row where the attack knew the certificate; `sween attack
    --certificates` on that image makes it anew where not.
    """
    rows = []
    for attack in attacked:
        certified_by = certificates_of(attack, runs)
        for row in alarms_of(attack, attack.outcomes, certified_by) or ():
            every = (
                radius_of_label(own.get(row.index), row.label) for own in certified_by.values()
            )
            known = [radius for radius in (row.certified_radius, *every) if radius is not None]
            kept = "no" if row.attacked_image is None else "yes"
            rows.append(
                [
                    Cell(attack.name, attack.name),
                    Cell(row.model, row.model),
                    Cell(str(row.index), row.index),
                    Cell(f"{row.eps:g}", row.eps),
                    Cell(f"{row.distance:.6g}", row.distance),
                    Cell(f"{max(known):.6g}", max(known)) if known else Cell("-"),
                    Cell(kept, kept),
                ]
            )
    return Table("alarms", _HEADINGS, _FIELDS, rows, (0, 1, 6)) if rows else None
