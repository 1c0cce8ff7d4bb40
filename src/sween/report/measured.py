"""A run folder as the report needs it: certificates by model, one set of settings, provenance."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.data.selection import count_indices
from sween.errors import BadInput, CheckpointError
from sween.evaluation import (
    PairedInterval,
    average_certified_radius,
    by_model,
    paired_bootstrap,
)
from sween.paths import AnyPath
from sween.records import Certificate
from sween.report.published_logs import SLACK, largest_radius
from sween.report.rows import Kind, Row, build_rows, model_kinds
from sween.runs import CertificationRun

SHARED_SETTINGS = ("sigma", "alpha", "n0", "bound", "sampling")
"""What all certificates of a run must agree on; n too, where the sampling is fixed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run folder, checked: every model on the same images with the same settings.

    Attributes:
        name: the folder's name.
        dataset: as the config says, else the folder's name.
        models: each model's certificates.
        kinds: what each model is to the ensemble.
        ensemble: the ensemble's name among the models, if there is one.
        rows: the run's table.
        environment: what environment.json says, empty without one.
        images_asked: how many images the config asks for; None where it does not say.
        config: the run's config.toml.
    """

    name: str
    dataset: str
    models: Mapping[str, Sequence[Certificate]]
    kinds: Mapping[str, Kind]
    ensemble: str | None
    rows: Sequence[Row]
    environment: Mapping[str, Any]
    images_asked: int | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def fingerprint(self) -> str | None:
        """What tells the certified ensemble from others, where the config says."""
        value = self.config.get("fingerprint")
        return value if isinstance(value, str) else None

    @property
    def sample(self) -> Certificate:
        """Any certificate: they share their settings."""
        return next(iter(self.models.values()))[0]

    @property
    def candidates(self) -> list[str]:
        """The ensemble's candidates among the models."""
        return [model for model, kind in self.kinds.items() if kind == "candidate"]

    @property
    def indices(self) -> list[int]:
        """The images, ascending."""
        return sorted(certificate.index for certificate in next(iter(self.models.values())))

    @property
    def skipped_note(self) -> str | None:
        """How many images could not be read, where the config says so."""
        return skipped_in_words(self.config)

    @property
    def sampling_note(self) -> str | None:
        """What its table does not say, where only some radii were to be decided."""
        if self.sample.sampling != "decide":
            return None
        radii = ", ".join(self.sample.decisions or ())
        return (
            f"Sampled to decide the radii {radii}: what stands at other radii, and the ACR, is "
            "lower than with fixed sampling."
        )

    @functools.cached_property
    def lead(self) -> tuple[str, PairedInterval] | None:
        """The candidate with the largest ACR and the ensemble's lead over it; None without either.

        The candidate is chosen on the images it is then judged on, which favours it: the choice
        understates the lead on average.
        """
        if self.ensemble is None or not self.candidates:
            return None
        best = max(self.candidates, key=lambda model: average_certified_radius(self.models[model]))
        return best, paired_bootstrap(self.models[self.ensemble], self.models[best])

    def distinct(self, field: str) -> list[Any]:
        """The values that a field of the certificates takes, ascending."""
        return sorted({getattr(row, field) for rows in self.models.values() for row in rows})


def load_run(folder: AnyPath, *, radii: Sequence[float] | None = None) -> MeasuredRun:
    """Read and check a run folder.

    Raises:
        BadInput: no certificates, models on different images, or rows that do not fit their
            checksum, their votes or the config; see `read_run`.
    """
    folder = Path(folder)
    checked = CertificationRun.read(folder)
    config, certificates = checked.config.content, checked.rows
    ensemble, members = _named_models(folder, config)
    try:
        models = by_model(certificates)
        rows = build_rows(
            certificates, radii=radii, ensemble=ensemble, members=members, run=folder.resolve().name
        )
        _check_settings(certificates, config)
        _check_radii(certificates)
        _check_weights(config)
        skipped_in_words(config)
    except BadInput as error:
        raise BadInput(f"{folder}: {error}") from None
    return MeasuredRun(
        name=folder.resolve().name,
        dataset=str(config.get("dataset", folder.resolve().name)),
        models=models,
        kinds=model_kinds(models, ensemble=ensemble, members=members),
        ensemble=ensemble,
        rows=rows,
        environment=read_environment(folder),
        images_asked=config["images"] if isinstance(config.get("images"), int) else None,
        config=config,
    )


def skipped_in_words(config: Mapping[str, Any]) -> str | None:
    """That images were left out as unreadable, and how many; None where none were.

    Raises:
        BadInput: the config's `skipped` names no images.
    """
    indices = config.get("skipped")
    if indices is None:
        return None
    try:
        count = count_indices(indices) if isinstance(indices, str) else 0
    except BadInput:
        count = 0
    if count == 0:
        raise BadInput(
            "skipped in config.toml",
            expected="indices such as 3,17 or 40:44",
            got=repr(indices),
            fix="restore the folder from its source",
        )
    if count == 1:
        return "1 image could not be read and is not counted."
    return f"{count:,} images could not be read and are not counted."


def outwards(interval: PairedInterval) -> tuple[float, float]:
    """The interval's ends to three digits, rounded away from its middle."""
    return math.floor(1000 * interval.low) / 1000, math.ceil(1000 * interval.high) / 1000


def _named_models(
    folder: Path, config: Mapping[str, Any]
) -> tuple[str | None, Sequence[str] | None]:
    ensemble, members = config.get("ensemble"), config.get("members")
    if ensemble is not None and not isinstance(ensemble, str):
        raise CheckpointError(
            f"{folder / 'config.toml'}: ensemble",
            expected="the name of a model",
            got=ensemble,
            fix="restore the file",
        )
    listed = isinstance(members, list) and all(isinstance(name, str) for name in members)
    if members is not None and not listed:
        raise CheckpointError(
            f"{folder / 'config.toml'}: members",
            expected="a list of model names",
            got=members,
            fix="restore the file",
        )
    return ensemble, members


def _check_settings(certificates: Sequence[Certificate], config: Mapping[str, Any]) -> None:
    """One table, one claim: rows of two settings must not be averaged together."""
    first = certificates[0]
    shared = [*SHARED_SETTINGS, *(["n"] if first.sampling == "fixed" else [])]
    for certificate in certificates:
        for name in shared:
            if getattr(certificate, name) != getattr(first, name):
                raise BadInput(
                    f"{name} of {certificate.model}, index {certificate.index}",
                    expected=f"{getattr(first, name)} as for index {first.index}",
                    got=getattr(certificate, name),
                    fix="keep runs of different settings in different folders",
                )
    for name in ("sigma", "alpha"):
        if name in config and config[name] != getattr(first, name):
            raise BadInput(
                f"{name} of the certificates",
                expected=f"{config[name]} as in config.toml",
                got=getattr(first, name),
                fix="restore the folder from its source",
            )


def _check_radii(certificates: Sequence[Certificate]) -> None:
    """Refuse radii that no votes can give: `sween verify` would too, and their average is shown."""
    limits = dict[tuple[float, int, float], float]()
    for row in certificates:
        if row.samples < 1:
            raise BadInput(
                f"samples of {row.model}, index {row.index}",
                expected="at least 1",
                got=row.samples,
                fix="restore the folder from its source",
            )
        key = (row.sigma, max(row.n, row.samples), row.alpha)
        if key not in limits:
            limits[key] = largest_radius(sigma=key[0], n=key[1], alpha=key[2])
        if row.radius > limits[key] * (1 + SLACK):
            raise BadInput(
                f"radius of {row.model}, index {row.index}",
                expected=f"at most {limits[key]:.4g}, which {key[1]:,} equal votes give",
                got=row.radius,
                fix="restore the folder from its source; sween verify says what differs",
            )


def _check_weights(config: Mapping[str, Any]) -> None:
    """One number a candidate, in every weighting that the config names."""
    members, others = config.get("candidates"), config.get("weightings", {})
    if not isinstance(members, list) or not isinstance(others, Mapping):
        return
    for name, weights in {"weights": config.get("weights"), **others}.items():
        numbers = isinstance(weights, list) and all(isinstance(w, int | float) for w in weights)
        if weights is not None and (not numbers or len(weights) != len(members)):
            raise BadInput(
                f"{name} in config.toml",
                expected=f"{len(members)} numbers, one a candidate",
                got=weights,
                fix="restore the folder from its source",
            )


def read_environment(folder: Path) -> dict[str, Any]:
    """What environment.json says; nothing without one."""
    path = folder / "environment.json"
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            str(path), expected="JSON", got=error, fix="restore the file"
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(
            str(path), expected="a JSON object", got=type(content).__name__, fix="restore the file"
        )
    return content
