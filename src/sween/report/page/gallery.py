"""The page's gallery: every image, every model's answer to it, and what attacks did to it."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from sween.data import Dataset
from sween.records import Certificate, format_radius
from sween.report.attacked import AttackedRun, attack_labels, attack_points
from sween.report.measured import MeasuredRun
from sween.report.tables import plain_number
from sween.runs.attack_outcome import OUTCOMES

UNITS = 10_000
"""Radii travel as whole ten-thousandths, rounded down. A radius r is at least t exactly where its
units are, for every t that is itself whole in units, so the page counts without rounding."""

TOP_CLASSES = 3
"""Classes whose votes are shown."""

LONGEST_SIDE = 64
"""In pixels: larger images are downscaled. CIFAR's 32 and the digits' 8 stay as they are."""

JPEG_QUALITY = 85


def in_units(radius: float) -> int:
    """A radius in whole units, rounded down."""
    return int(format_radius(radius, 4).replace(".", ""))


class Gallery:
    """The images of a page as data URLs, each once: runs are often on the same images."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def pictures(self) -> list[str]:
        """The data URLs, in the order of their numbers."""
        return list(self._numbers)

    def content(
        self, run: MeasuredRun, attacks: Sequence[AttackedRun], dataset: Dataset | None
    ) -> dict[str, Any]:
        """A run's classes, attacks and gallery.

        The gallery has columns, not rows: position i of every list is image i, ascending by index.
        `picture` has each image's number among the page's pictures, `outcomes` for each image
        [attack's number, outcome's number, prediction under attack, alarm].
        """
        models = [sorted(rows, key=lambda row: row.index) for rows in run.models.values()]
        numbers, shape = self._pictures(run.indices, dataset)
        points, outcomes = _attacks(run, attacks)
        return {
            "classes": _class_names(run, dataset),
            "attacks": points,
            "gallery": {
                "index": run.indices,
                "label": [row.label for row in models[0]],
                "picture": numbers,
                "shape": shape,
                "reduced": shape is not None and max(shape[1:]) > LONGEST_SIDE,
                "answers": [_answers(rows) for rows in models],
                "outcomes": [outcomes.get(index) for index in run.indices] if outcomes else [],
                "outcome_names": OUTCOMES,
                "soft": run.sample.votes == "soft",
            },
        }

    def _pictures(
        self, indices: Sequence[int], dataset: Dataset | None
    ) -> tuple[list[int | None], list[int] | None]:
        if dataset is None:
            return [None] * len(indices), None
        images, white = dataset.test.pixels.load(indices), dataset.test.white
        if images.is_floating_point():  # in [0, 1]
            images, white = (255 * images).round().to(torch.uint8), 255
        urls = [to_data_url(image, white=white) for image in images]
        numbers = [self._numbers.setdefault(url, len(self._numbers)) for url in urls]
        return [*numbers], list(images.shape[1:])


def to_data_url(image: torch.Tensor, *, white: int = 255) -> str:
    """An image as a lossless PNG, or as a small JPEG where it is larger than LONGEST_SIDE.

    Args:
        image: uint8 (C, H, W) with C 1 or 3.
        white: the pixel value that is shown white.
    """
    values = image.permute(1, 2, 0).cpu().numpy().astype(np.float64) * 255 / white
    pixels = np.rint(values).astype(np.uint8)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    stream, kind = io.BytesIO(), "png"
    if max(picture.size) > LONGEST_SIDE:
        kind = "jpeg"  # downscaled anyway, and a PNG of a photo is four times as large
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    picture.save(stream, format=kind.upper(), optimize=True, quality=JPEG_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _class_names(run: MeasuredRun, dataset: Dataset | None) -> list[str]:
    rows = [row for own in run.models.values() for row in own]
    used = max(
        max(len(row.estimation_counts), (row.label or 0) + 1, row.prediction + 1) for row in rows
    )
    names = () if dataset is None else dataset.class_names
    return [*names, *(f"class {number}" for number in range(len(names), used))]


def _answers(rows: Sequence[Certificate]) -> dict[str, list[Any]]:
    return {
        "prediction": [row.prediction for row in rows],
        "radius": [in_units(row.radius) for row in rows],
        "votes": [_top_votes(row.estimation_counts) for row in rows],
        "n": [row.n for row in rows],
    }


def _top_votes(counts: Sequence[int]) -> list[int]:
    """Class, count, class, count, ... from the most votes down, of classes that have any."""
    top = sorted(range(len(counts)), key=lambda name: (-counts[name], name))[:TOP_CLASSES]
    return [number for name in top if counts[name] for number in (name, counts[name])]


def _attacks(
    run: MeasuredRun, attacks: Sequence[AttackedRun]
) -> tuple[list[dict[str, Any]], dict[int, list[list[int]]]]:
    """Accuracy under each attack at each radius, and the outcomes of every image."""
    points = list[dict[str, Any]]()
    outcomes = dict[int, list[list[int]]]()
    named = zip(attacks, attack_labels(attacks), strict=True)
    for attack, label in sorted(named, key=lambda pair: (pair[0].model, pair[1])):
        for point in attack_points(attack, [run]):
            alarms = {row.index for row in point.alarms or ()}
            for row in point.outcomes if point.radius else ():
                answer = [OUTCOMES.index(row.outcome), row.prediction, int(row.index in alarms)]
                outcomes.setdefault(row.index, []).append([len(points), *answer])
            points.append(
                {
                    "model": attack.model,
                    "attack": label,
                    "radius": in_units(point.radius),
                    "eps": plain_number(point.radius),
                    "count": len(point.outcomes),
                    "robust": sum(row.resists for row in point.outcomes),
                    "alarms": len(alarms),
                }
            )
    return points, outcomes
