"""A certification run as the report needs it: certificates by model, table rows, provenance."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput, CheckpointError, describe_type
from sween.evaluation import (
    PairedInterval,
    average_certified_radius,
    by_model,
    paired_bootstrap,
)
from sween.paths import AnyPath
from sween.records import Certificate
from sween.report.rows import Kind, Row, build_rows, model_kinds
from sween.runs import CertificationConfig, CertificationRun
from sween.runs.subject import SubjectConfig


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """One run folder: every model on the same images with the same settings.

    Attributes:
        name: the folder's name.
        config: of the run.
        models: each model's certificates.
        rows: the rows of its table.
        environment: the content of environment.json, empty without one.

    Example:
        See `load_run`.
    """

    name: str
    config: CertificationConfig
    models: Mapping[str, Sequence[Certificate]]
    rows: Sequence[Row]
    environment: Mapping[str, Any]

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.config.dataset

    @property
    def ensemble(self) -> str | None:
        """The ensemble, where its candidates were certified too."""
        return self.config.ensemble

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """What each model is to the ensemble."""
        return model_kinds(self.models, ensemble=self.ensemble, members=self.config.members)

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
        """Caveats to state before the numbers."""
        found, done, asked = [], len(self.indices), len(self.config.indices)
        if done < asked:
            found.append(f"Incomplete: {done:,} of the {asked:,} requested images.")
        found += skipped_images(self.config)
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
        if self.ensemble is None:
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

    Example:
        >>> import sween
        >>> from sween.report import load_run
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> measured = load_run("run")
        >>> measured.dataset, list(measured.models), measured.indices
        ('digits', ['SWEEN-3'], [0, 1, 2])
    """
    folder = Path(folder)
    name, checked = folder.resolve().name, CertificationRun.read(folder)
    config = checked.config
    try:
        rows = build_rows(
            checked.rows, radii=radii, ensemble=config.ensemble, members=config.members, run=name
        )
    except BadInput as error:
        raise BadInput(f"{folder}: {error}") from None
    return MeasuredRun(name, config, by_model(checked.rows), rows, read_environment(folder))


def skipped_images(config: SubjectConfig) -> list[str]:
    """A sentence on the images that were skipped as unreadable, where there are any."""
    if not config.skipped:
        return []
    images, verb = ("image", "is") if config.skipped == 1 else ("images", "are")
    return [f"{config.skipped:,} {images} could not be read and {verb} not counted."]


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of environment.json; empty without one."""
    path = folder / "environment.json"
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        got: object = describe_type(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        content, got = None, error
    if not isinstance(content, dict):
        raise CheckpointError(
            str(path), expected="a JSON object", got=got, fix="restore the file"
        ) from None
    return content
