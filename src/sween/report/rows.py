"""Certified accuracy as in the paper's tables: candidates, AVG, UE and, last, the ensemble."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sween.errors import BadInput, UnknownName
from sween.evaluation import (
    RadiusField,
    Share,
    abstention_rate,
    average_certified_radius,
    by_model,
    certified_accuracy,
    check_radii,
    pair_by_index,
    share_of_images,
)
from sween.records import Certificate, format_radius
from sween.report.tables import (
    CSV,
    PAGE,
    Column,
    Table,
    make_table,
    markdown,
    percentage,
    plain_number,
)

DEFAULT_RADII: tuple[float, ...] = tuple(step / 4 for step in range(9))
"""The columns of the paper's tables: 0.00, 0.25, ..., 2.00."""

Kind = Literal["model", "candidate", "average", "envelope", "ensemble"]

ACCURACY_NOTE = (
    "certified accuracy in percent at that l2 radius (pixels scaled to [0,1]): the share of all "
    "images that are classified correctly with a certified radius at least as large. Wrong and "
    "abstained images stay in the denominator."
)
ACR_NOTE = (
    "average certified radius over all images, counting 0 where wrong or abstained; it equals the "
    "area under the curve. Rounded down: a radius rounded up would not be certified."
)
BOUND_NOTE = (
    "ACR of the same votes under that bound; - where it is not available. Each bound's "
    "certificates hold on their own, not both at once."
)
ABSTENTION_NOTE = "share of images on which the classifier abstains."
EVALUATED = "networks evaluated per noisy image, on average"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table.

    Attributes:
        run: the run it was measured in.
        sigma: noise level.
        model: its name, or AVG or UE.
        kind: what it is; AVG and UE summarise the candidates and are not models.
        bound: the bound behind `accuracies` and `acr`.
        images: how many there are behind every number.
        radii: of the certified accuracies.
        accuracies: certified accuracies, fractions in [0,1].
        acr: average certified radius.
        abstention: fraction of images abstained on; None for UE, where more is not better.
        acr_cohen: ACR of the same votes under Cohen's bound; None where it is not available.
        acr_two_class: ACR of the same votes under the two-class bound; likewise.
        evaluations: networks evaluated per noisy image; None for AVG and UE.

    Example:
        See `build_rows`.
    """

    run: str
    sigma: float
    model: str
    kind: Kind
    bound: str
    images: int
    radii: tuple[float, ...]
    accuracies: tuple[float, ...]
    acr: float
    abstention: float | None
    acr_cohen: float | None
    acr_two_class: float | None
    evaluations: float | None

    @property
    def is_model(self) -> bool:
        """Not AVG or UE, which summarise models."""
        return self.kind not in ("average", "envelope")

    @property
    def shares(self) -> list[Share] | None:
        """The accuracies with their confidence intervals; None for AVG and UE."""
        if not self.is_model:
            return None
        return [share_of_images(round(own * self.images), self.images) for own in self.accuracies]


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
        ensemble: the model to put last, below AVG and UE of its candidates; without it every model
            is a plain row.
        members: the ensemble's candidates; every other model by default. Models that are neither
            come after AVG and UE and are not part of them.
        run: a name to tell the rows of several runs apart.

    Raises:
        BadInput: the models cover different images, or a named model has no rows.

    Example:
        >>> import sween
        >>> from sween.report import build_rows, to_markdown
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> rows = build_rows(run.certificates, radii=[0.0, 0.25])
        >>> print(to_markdown(rows).splitlines()[0])
        | σ | Model | 0.00 | 0.25 | ACR | abstain % | two-class ACR |
    """
    columns = sorted(set(check_radii(DEFAULT_RADII if radii is None else radii).tolist()))
    models = by_model(certificates)
    if not models:
        raise BadInput("certificates: expected at least one, got none; pass the rows of a run")
    first, *others = models.values()
    for other in others:  # refuses models on different images, whose rows do not compare
        pair_by_index(first, other)
    kinds = model_kinds(models, ensemble=ensemble, members=members)
    rows = [_model_row(model, kind, models[model], columns, run) for model, kind in kinds.items()]
    candidates = [row for row in rows if row.kind == "candidate"]
    return [
        *candidates,
        *(_summary_rows(candidates) if len(candidates) > 1 else []),
        *(row for row in rows if row.kind == "model"),
        *(row for row in rows if row.kind == "ensemble"),
    ]


def model_kinds(
    models: Mapping[str, object], *, ensemble: str | None, members: Sequence[str] | None
) -> dict[str, Kind]:
    """What each model is to the ensemble."""
    if ensemble is None:
        return dict.fromkeys(models, "model")
    if ensemble not in models:
        raise UnknownName("ensemble", ensemble, models)
    others = [model for model in models if model != ensemble]
    candidates = others if members is None else members
    kinds: dict[str, Kind] = {
        model: "candidate" if model in candidates else "model" for model in others
    }
    return {**kinds, ensemble: "ensemble"}


def evaluations_per_sample(certificates: Sequence[Certificate]) -> float:
    """Networks evaluated per noisy image, on average over the images."""
    return sum(row.member_evaluations / row.samples for row in certificates) / len(certificates)


def _model_row(
    model: str, kind: Kind, certificates: Sequence[Certificate], radii: Sequence[float], run: str
) -> Row:
    return Row(
        run=run,
        sigma=certificates[0].sigma,
        model=model,
        kind=kind,
        bound=certificates[0].bound,
        images=len(certificates),
        radii=tuple(radii),
        accuracies=tuple(certified_accuracy(certificates, radii).tolist()),
        acr=average_certified_radius(certificates),
        abstention=abstention_rate(certificates),
        acr_cohen=_acr_by(certificates, "radius_cohen"),
        acr_two_class=_acr_by(certificates, "radius_two_class"),
        evaluations=evaluations_per_sample(certificates),
    )


def _acr_by(certificates: Sequence[Certificate], field: RadiusField) -> float | None:
    if any(getattr(certificate, field) is None for certificate in certificates):
        return None
    return average_certified_radius(certificates, radius=field)


def _summary_rows(candidates: Sequence[Row]) -> list[Row]:
    """AVG and UE: the mean and the largest value of each column over the candidates.

    The columns of UE may come from different candidates, so no single model need reach it. As in
    the paper, its ACR is that of the best candidate, not the area under the envelope of the curves,
    which may be larger. It has no abstention, as more is not better.
    """

    def summary(model: str, kind: Kind, over: Callable[[Sequence[float]], float]) -> Row:
        names = ("acr", "abstention", "acr_cohen", "acr_two_class")
        columns = {name: [getattr(row, name) for row in candidates] for name in names}
        values = {name: None if None in own else over(own) for name, own in columns.items()}
        accuracies = tuple(map(over, zip(*(row.accuracies for row in candidates), strict=True)))
        changes: dict[str, Any] = {"accuracies": accuracies, "evaluations": None, **values}
        return dataclasses.replace(candidates[0], model=model, kind=kind, **changes)

    mean = summary("AVG", "average", lambda values: sum(values) / len(values))
    return [mean, dataclasses.replace(summary("UE", "envelope", max), abstention=None)]


def certified_table(rows: Sequence[Row]) -> Table:
    """The table of certified accuracies; the best model of each run and noise level is bold.

    Accuracies are percentages with one decimal. An average radius is rounded DOWN to three: a
    radius rounded up would claim what was not certified. AVG and UE are never bold, nor is a column
    in which all models agree.

    Args:
        rows: at least one, all at the same radii.
    """
    radii = rows[0].radii
    accuracies = [f"certified_accuracy_{plain_number(radius)}" for radius in radii]
    blocks = [(row.run, row.sigma) for row in rows]
    numbers = {block: number for number, block in enumerate(dict.fromkeys(blocks))}
    return make_table(
        "table",
        "Certified accuracy",
        _columns(rows, dict(zip(accuracies, map(plain_number, radii), strict=True))),
        [_record(row, accuracies) for row in rows],
        blocks=[numbers[block] for block in blocks],
        rivals=[block if row.is_model else None for row, block in zip(rows, blocks, strict=True)],
    )


def to_markdown(rows: Sequence[Row]) -> str:
    """The table of certified accuracies in Markdown.

    Example:
        See `build_rows`.
    """
    return markdown(certified_table(rows))


def _columns(rows: Sequence[Row], accuracies: Mapping[str, str]) -> list[Column]:
    everywhere = Column("", "").outputs
    several_runs = len({row.run for row in rows}) > 1
    several_kinds = len({row.kind for row in rows}) > 1
    two_class = any(row.bound != "cohen" for row in rows)
    cohen = everywhere if two_class else (CSV,)  # what the literature compares
    return [
        Column("run", "run", outputs=everywhere if several_runs else (CSV,)),
        Column("σ", "sigma", plain_number),
        Column("Model", "model"),
        Column("kind", "kind", outputs=(CSV, PAGE) if several_kinds else (CSV,)),
        Column("bound", "bound", outputs=(CSV, PAGE) if two_class else (CSV,)),
        Column("images", "images", str, outputs=(CSV,)),
        *(
            Column(radius, field, percentage, "most", ACCURACY_NOTE)
            for field, radius in accuracies.items()
        ),
        Column("ACR", "acr", format_radius, "most", ACR_NOTE),
        Column("abstain %", "abstention", percentage, "least", ABSTENTION_NOTE),
        Column("two-class ACR", "acr_two_class", format_radius, "most", BOUND_NOTE),
        Column("Cohen ACR", "acr_cohen", format_radius, "most", BOUND_NOTE, outputs=cohen),
        Column("evaluations", "evaluations", "{:.2f}".format, note=EVALUATED, outputs=(PAGE,)),
        *(
            Column(f"{radius} {end}", f"{field}_{end}", percentage, outputs=(CSV,))
            for field, radius in accuracies.items()
            for end in ("low", "high")
        ),
    ]


def _record(row: Row, accuracies: Sequence[str]) -> dict[str, Any]:
    shares: Sequence[Share | None] = row.shares or [None] * len(accuracies)
    record: dict[str, Any] = {
        field.name: getattr(row, field.name) for field in dataclasses.fields(row)
    }
    for field, value, share in zip(accuracies, row.accuracies, shares, strict=True):
        record[field] = value if share is None else share
        record[f"{field}_low"] = None if share is None else share.low
        record[f"{field}_high"] = None if share is None else share.high
    return record
