"""The rows of the paper's tables: candidates, AVG, UE and, last, the ensemble."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from sween.errors import BadInput, UnknownName
from sween.evaluation import (
    RadiusField,
    Scores,
    Share,
    abstention_rate,
    average,
    average_certified_radius,
    by_model,
    check_radii,
    pair_by_index,
    score,
    share_of_images,
    upper_envelope,
)
from sween.records import Certificate

DEFAULT_RADII: tuple[float, ...] = tuple(step / 4 for step in range(9))
"""The columns of the paper's tables: 0.00, 0.25, ..., 2.00."""

Kind = Literal["model", "candidate", "average", "envelope", "ensemble"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        run: the run it was measured in.
        sigma: noise level.
        model: its name, or AVG or UE.
        kind: what it is; AVG and UE summarise the candidates and are no models.
        bound: the bound behind `scores`.
        scores: certified accuracies and ACR by that bound.
        abstention: fraction of images not answered; None for UE, where more is not better.
        acr_cohen: ACR of the same votes by Cohen's bound; None where it cannot be had.
        acr_two_class: ACR of the same votes by the two-class bound; None where it cannot be had.
    """

    run: str
    sigma: float
    model: str
    kind: Kind
    bound: str
    scores: Scores
    abstention: float | None
    acr_cohen: float | None
    acr_two_class: float | None

    @property
    def is_model(self) -> bool:
        """Not AVG or UE, which summarise models."""
        return self.kind not in ("average", "envelope")

    @property
    def shares(self) -> list[Share] | None:
        """The accuracies with their confidence intervals; None for what is no model."""
        if not self.is_model:
            return None
        count = self.scores.count
        return [share_of_images(round(own * count), count) for own in self.scores.accuracies]


def build_rows(
    certificates: Sequence[Certificate],
    *,
    radii: Sequence[float] | None = None,
    ensemble: str | None = None,
    members: Sequence[str] | None = None,
    run: str = "",
) -> list[Row]:
    """The table's rows for one run.

    Args:
        certificates: of one or more models, all on the same images.
        radii: columns of certified accuracy, in any order; the paper's by default.
        ensemble: the model to set last, below AVG and UE of its candidates; without it every model
            is a plain row.
        members: the ensemble's candidates; every other model by default. Models that are neither
            come after AVG and UE and stay out of them.
        run: a name to tell the rows of several runs apart.

    Raises:
        BadInput: the models cover different images, or a named model has no rows.
    """
    columns = sorted(set(check_radii(DEFAULT_RADII if radii is None else radii).tolist()))
    models = by_model(certificates)
    if not models:
        raise BadInput(
            "certificates", expected="at least one", got="none", fix="pass the rows of a run"
        )
    check_same_images(models)
    kinds = model_kinds(models, ensemble=ensemble, members=members)
    rows = {
        model: _model_row(model, kind, models[model], columns, run) for model, kind in kinds.items()
    }
    candidates = [row for row in rows.values() if row.kind == "candidate"]
    summaries = [_average_row(candidates), _envelope_row(candidates)] if len(candidates) > 1 else []
    return [
        *candidates,
        *summaries,
        *(row for row in rows.values() if row.kind == "model"),
        *(row for row in rows.values() if row.kind == "ensemble"),
    ]


def check_same_images(models: Mapping[str, Sequence[Certificate]]) -> None:
    """Refuse models that were measured on different images: their rows do not compare."""
    first, *others = models.values()
    for other in others:
        pair_by_index(first, other)


def model_kinds(
    models: Mapping[str, object], *, ensemble: str | None, members: Sequence[str] | None
) -> dict[str, Kind]:
    """What each model is to the ensemble.

    A run may hold the ensemble's rows alone; if it holds some members it must hold them all, as
    the envelope of a part would pass for the envelope of the whole.
    """
    if ensemble is None:
        return dict.fromkeys(models, "model")
    if ensemble not in models:
        raise UnknownName("ensemble", ensemble, models)
    others = [model for model in models if model != ensemble]
    candidates = others if members is None else [model for model in members if model in models]
    if members is not None and candidates and len(candidates) < len(members):
        raise BadInput(
            "members",
            expected="certificates of every member, or of none",
            got=f"none of {', '.join(member for member in members if member not in models)}",
            fix="certify the members on the same images too",
        )
    kinds: dict[str, Kind] = {
        model: "candidate" if model in candidates else "model" for model in others
    }
    kinds[ensemble] = "ensemble"
    return kinds


def _model_row(
    model: str, kind: Kind, certificates: Sequence[Certificate], radii: Sequence[float], run: str
) -> Row:
    return Row(
        run=run,
        sigma=certificates[0].sigma,
        model=model,
        kind=kind,
        bound=certificates[0].bound,
        scores=score(certificates, radii),
        abstention=abstention_rate(certificates),
        acr_cohen=_acr_by(certificates, "radius_cohen"),
        acr_two_class=_acr_by(certificates, "radius_two_class"),
    )


def _acr_by(certificates: Sequence[Certificate], field: RadiusField) -> float | None:
    if any(getattr(certificate, field) is None for certificate in certificates):
        return None
    return average_certified_radius(certificates, radius=field)


def _average_row(candidates: Sequence[Row]) -> Row:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return dataclasses.replace(
        candidates[0],
        model="AVG",
        kind="average",
        scores=average([row.scores for row in candidates]),
        abstention=_summary([row.abstention for row in candidates], mean),
        acr_cohen=_summary([row.acr_cohen for row in candidates], mean),
        acr_two_class=_summary([row.acr_two_class for row in candidates], mean),
    )


def _envelope_row(candidates: Sequence[Row]) -> Row:
    return dataclasses.replace(
        candidates[0],
        model="UE",
        kind="envelope",
        scores=upper_envelope([row.scores for row in candidates]),
        abstention=None,
        acr_cohen=_summary([row.acr_cohen for row in candidates], max),
        acr_two_class=_summary([row.acr_two_class for row in candidates], max),
    )


def _summary(
    values: Sequence[float | None], summarise: Callable[[Sequence[float]], float]
) -> float | None:
    known = [value for value in values if value is not None]
    return summarise(known) if len(known) == len(values) else None
