"""The page's gallery: every image, every model's answer to it, and what attacks did to it."""

from collections.abc import Sequence
from typing import Any

from sween.records import Certificate
from sween.report.page.curves import attack_groups
from sween.report.page.numbers import in_units
from sween.report.page.pictures import LONGEST_SIDE, to_data_url
from sween.report.page.run import PageRun
from sween.runs.attack_outcome import OUTCOMES, AttackOutcome

TOP_CLASSES = 3
"""Classes whose votes are shown."""


class Pictures:
    """Data URLs by their numbers, each once: runs are often on the same images."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, url: str) -> int:
        return self._numbers.setdefault(url, len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


def gallery_content(page: PageRun, pictures: Pictures) -> dict[str, Any]:
    """Columns, not rows: position i of every list is image i, ascending by index.

    `picture` has each image's number among the page's pictures; `outcomes` for each image
    [attack's number, outcome's number, answer under attack, alarm].
    """
    first = _ordered(next(iter(page.run.models.values())))
    images = [None if page.images is None else page.images.get(row.index) for row in first]
    shapes = sorted({tuple(image.shape) for image in images if image is not None})
    return {
        "index": [row.index for row in first],
        "label": [row.label for row in first],
        "picture": [
            None if image is None else pictures.number(to_data_url(image, white=page.white))
            for image in images
        ],
        "shapes": shapes,
        "reduced": any(max(shape[1:]) > LONGEST_SIDE for shape in shapes),
        "answers": [_answers(rows) for rows in page.run.models.values()],
        "outcomes": _outcomes(page.attacks, [row.index for row in first]),
        "outcome_names": OUTCOMES,
        "soft": page.run.sample.votes == "soft",
    }


def _ordered(rows: Sequence[Certificate]) -> list[Certificate]:
    return sorted(rows, key=lambda row: row.index)


def _answers(rows: Sequence[Certificate]) -> dict[str, list[Any]]:
    ordered = _ordered(rows)
    return {
        "prediction": [row.prediction for row in ordered],
        "radius": [in_units(row.radius) for row in ordered],
        "votes": [_top_votes(row.estimation_counts) for row in ordered],
        "n": [row.n for row in ordered],
    }


def _top_votes(counts: Sequence[int]) -> list[int]:
    """Class, count, class, count, ... from the most votes down, of classes that have any."""
    top = sorted(range(len(counts)), key=lambda name: (-counts[name], name))[:TOP_CLASSES]
    return [number for name in top if counts[name] for number in (name, counts[name])]


def _outcomes(attacks: Sequence[AttackOutcome], indices: Sequence[int]) -> list[Any]:
    groups = attack_groups(attacks)
    found: dict[int, list[list[int]]] = {}
    for row in sorted(attacks, key=lambda row: groups[row.model, row.attack, row.eps]):
        group = groups[row.model, row.attack, row.eps]
        found.setdefault(row.index, []).append(
            [group, OUTCOMES.index(row.outcome), row.prediction, int(row.alarm)]
        )
    return [found.get(index) for index in indices] if attacks else []
