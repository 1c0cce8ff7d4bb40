"""A model's row in the paper's tables, and the rows AVG and UE of several candidates."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sween.errors import BadInput
from sween.evaluation.accuracy import (
    Floats,
    RadiusField,
    average_certified_radius,
    certified_accuracy,
)
from sween.records import Certificate


@dataclasses.dataclass(frozen=True)
class Scores:
    """Certified accuracies and ACR of one model, or of several combined.

    Attributes:
        radii: of the certified accuracies.
        accuracies: fractions in [0,1], one per radius.
        acr: average certified radius.
        count: images behind every number.
    """

    radii: tuple[float, ...]
    accuracies: tuple[float, ...]
    acr: float
    count: int


def score(
    certificates: Sequence[Certificate],
    radii: Sequence[float] | Floats,
    *,
    radius: RadiusField = "radius",
) -> Scores:
    """One model's scores over all its images.

    Args:
        certificates: of one model, one per image, with labels.
        radii: l2 radii of the certified accuracies.
        radius: which radius of the certificates to use.
    """
    accuracies = certified_accuracy(certificates, radii, radius=radius)
    return Scores(
        radii=tuple(float(value) for value in radii),
        accuracies=tuple(accuracies.tolist()),
        acr=average_certified_radius(certificates, radius=radius),
        count=len(certificates),
    )


def upper_envelope(scores: Sequence[Scores]) -> Scores:
    """UE, the upper envelope: the maximum of each column over the candidates, ACR included.

    Columns may come from different candidates, so no single model need reach it. As in the paper,
    its ACR is that of the best candidate, not the area under the envelope of the curves, which may
    be larger.
    """
    _check_same_columns(scores)
    return dataclasses.replace(
        scores[0],
        accuracies=tuple(np.max([one.accuracies for one in scores], axis=0).tolist()),
        acr=max(one.acr for one in scores),
    )


def average(scores: Sequence[Scores]) -> Scores:
    """AVG: the mean of each column over the candidates, ACR included."""
    _check_same_columns(scores)
    return dataclasses.replace(
        scores[0],
        accuracies=tuple(np.mean([one.accuracies for one in scores], axis=0).tolist()),
        acr=float(np.mean([one.acr for one in scores])),
    )


def _check_same_columns(scores: Sequence[Scores]) -> None:
    if not scores:
        raise BadInput(
            "scores", expected="at least one candidate", got="none", fix="pass the candidates' rows"
        )
    for one in scores[1:]:
        if (one.radii, one.count) != (scores[0].radii, scores[0].count):
            raise BadInput(
                "scores",
                expected=f"radii {scores[0].radii} on {scores[0].count} images for every candidate",
                got=f"radii {one.radii} on {one.count} images",
                fix="score all candidates at the same radii on the same images",
            )
