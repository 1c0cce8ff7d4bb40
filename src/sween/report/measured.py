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
from sween.report.rows import Kind, Row, build_rows, model_kinds
from sween.runs import CertificationRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One run folder: every model on the same images with the same settings.

    Attributes:
        name: the folder's name.
        dataset: as the config says, else the folder's name.
        models: each model's certificates.
        kinds: what each model is to the ensemble.
        ensemble: the ensemble's name among the models, if there is one.
        rows: the rows of its table.
        environment: the content of environment.json, empty without one.
        images_asked: how many images were requested; None where the config does not say.
        config: the content of config.toml.
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
    def warnings(self) -> list[str]:
        """What a reader of the numbers must know first."""
        found = []
        if self.images_asked not in (None, len(self.indices)):
            done = f"{len(self.indices):,} of the {self.images_asked:,}"
            found.append(f"Incomplete: {done} requested images.")
        if (skipped := skipped_images(self.config)) is not None:
            found.append(skipped)
        if self.sample.sampling == "decide":
            radii = ", ".join(self.sample.decisions or ())
            found.append(
                f"Sampled only to decide the radii {radii}: the ACR, and certified accuracy at "
                "other radii, are lower than with fixed sampling."
            )
        return found

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
    """Read a run folder; `CertificationRun.read` checks every row against its votes and the config.

    Raises:
        BadInput: no certificates, models on different images, or rows that do not match their
            checksum, their votes or the config.
    """
    folder = Path(folder)
    name = folder.resolve().name
    checked = CertificationRun.read(folder)
    config, certificates = checked.config.content, checked.rows
    named = {"ensemble": config.get("ensemble"), "members": config.get("members")}
    try:
        rows = build_rows(certificates, radii=radii, run=name, **named)
    except BadInput as error:
        raise BadInput(f"{folder}: {error}") from None
    models = by_model(certificates)
    return MeasuredRun(
        name=name,
        dataset=str(config.get("dataset", name)),
        models=models,
        kinds=model_kinds(models, **named),
        ensemble=config.get("ensemble"),
        rows=rows,
        environment=read_environment(folder),
        images_asked=config.get("images"),
        config=config,
    )


def skipped_images(config: Mapping[str, Any]) -> str | None:
    """A sentence on the images that were skipped as unreadable; None where none were."""
    if "skipped" not in config:
        return None
    count = count_indices(config["skipped"])
    if count == 1:
        return "1 image could not be read and is not counted."
    return f"{count:,} images could not be read and are not counted."


def rounded_outwards(interval: PairedInterval) -> tuple[float, float]:
    """The interval's ends to three decimals, rounded away from its middle."""
    return math.floor(1000 * interval.low) / 1000, math.ceil(1000 * interval.high) / 1000


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of environment.json; empty without one."""
    path = folder / "environment.json"
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        got: object = type(content).__name__
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        content, got = None, error
    if not isinstance(content, dict):
        raise CheckpointError(
            str(path), expected="a JSON object", got=got, fix="restore the file"
        ) from None
    return content
