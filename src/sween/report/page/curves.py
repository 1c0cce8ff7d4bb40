"""The page's curves, by both bounds, and the accuracy under attack beside them."""

from collections.abc import Sequence
from typing import Any

from sween.attack import AttackOutcome, without_attack
from sween.evaluation import RadiusField, average_certified_radius, counted_radii
from sween.records import Certificate, format_radius
from sween.report.measured import MeasuredRun
from sween.report.page.numbers import in_units
from sween.report.tables import plain_number

BOUNDS: dict[str, RadiusField] = {"cohen": "radius_cohen", "two-class": "radius_two_class"}


def curves_content(run: MeasuredRun) -> list[dict[str, Any]]:
    """Each model's curve by each bound, the run's own first asked for; None where it has none.

    A curve is the list of the radii that count, ascending in units: at radius t it is the share of
    those that are at least t among all images.
    """
    return [
        {
            "name": model,
            "kind": run.kinds[model],
            "curves": {bound: _curve(rows, _field(run, bound)) for bound in BOUNDS},
        }
        for model, rows in run.models.items()
    ]


def _field(run: MeasuredRun, bound: str) -> RadiusField:
    # `radius` is there in every row; the same bound by name may be null for some sampling.
    return "radius" if run.sample.bound == bound else BOUNDS[bound]


def _curve(rows: Sequence[Certificate], field: RadiusField) -> dict[str, Any] | None:
    if any(getattr(row, field) is None for row in rows):
        return None
    counted = counted_radii(rows, radius=field)
    return {
        "acr": format_radius(average_certified_radius(rows, radius=field)),
        "radii": sorted(in_units(radius) for radius in counted.radii[counted.certified].tolist()),
    }


def attack_groups(attacks: Sequence[AttackOutcome]) -> dict[tuple[str, str, float], int]:
    """A number for each model, attack and radius, in ascending order, from radius 0 on."""
    keys = sorted({(row.model, row.attack, eps) for row in attacks for eps in (0.0, row.eps)})
    return {key: number for number, key in enumerate(keys)}


def attacks_content(attacks: Sequence[AttackOutcome]) -> list[dict[str, Any]]:
    """The accuracy under each attack at each radius; the table of attacks has the other numbers."""
    content = []
    for model, attack, eps in attack_groups(attacks):
        own = [row for row in attacks if (row.model, row.attack) == (model, attack)]
        rows = [row for row in own if row.eps == eps] if eps else without_attack(own)
        content.append(
            {
                "model": model,
                "attack": attack,
                "radius": in_units(eps),
                "eps": plain_number(eps),
                "count": len(rows),
                "resisting": sum(row.resists for row in rows),
                "alarms": sum(row.alarm for row in rows),
            }
        )
    return content
