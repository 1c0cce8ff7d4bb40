"""Certification runs: a folder of certificates with the config that they belong to.

Every reader and writer of such a folder goes through `CertificationRun`.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from sween.ensemble.early_exit import names_with_exits, parse_exit, refuse_same_exits
from sween.errors import BadInput, SmallSampleWarning
from sween.evaluation import average_certified_radius, certified_accuracy
from sween.paths import AnyPath
from sween.records import CERTIFICATES, Certificate, read_rows
from sween.runs.agreement import disagreements
from sween.runs.rows import Finding, RowAppender, RowRun, RunConfig, Types, resuming
from sween.runs.shards import Shard
from sween.runs.subject import UNLABELED
from sween.sampling import CertifySettings
from sween.sampling.rederive import derivation_problems
from sween.sampling.strategy import strategy_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertificationConfig(RunConfig):
    """The config of a certification run: what was certified, and how.

    Attributes:
        settings: of the sampling.
        members: those that were certified too.
        exits: of every voter, members first, the model last.
        weights: of every ensemble.

    Keys of config.toml:
        kind (text): `certificates`.
        n0 (whole number): votes that select the class.
        bound (text): `cohen` or `two-class`.
        sampling (text): `fixed`, `decide`, `tolerance` or `budget`.
        votes (text): `hard` or `soft`.
        radii (list of numbers): to decide. Absent except with `decide`.
        tolerance (number): share of the radius that may be lost. Absent except with `tolerance`.
        budget (whole number): noisy images in total, pilots included. Absent except with `budget`.
        members (list of text): members that were certified too. Absent if they were not.
        ensemble (text): the same as `model`. Absent where `members` is.
        weightings (table of lists of numbers): other weights of the same members that were
            certified too, by name. Absent if there are none.
        exits (table of text): other exits that were certified too, by the name of the model with
            that exit. Absent if there are none.

    Example:
        See `CertificationRun`.
    """

    VERB: ClassVar[str] = "certify"
    KIND: ClassVar[str] = "certificates"
    TYPES: ClassVar[Types] = {
        "exit": str,
        "n0": int,
        "alpha": int | float,
        "bound": str,
        "sampling": str,
        "votes": str,
    }
    OPTIONAL: ClassVar[Types] = {
        "members": list,
        "weightings": dict,
        "exits": dict,
        "radii": list,
        "tolerance": float,
        "budget": int,
    }
    REPEATED: ClassVar[tuple[str, ...]] = (
        *("n0", "alpha", "sigma", "bound", "sampling", "seed"),
        *("precision", "noise", "votes"),
    )

    settings: CertifySettings
    members: tuple[str, ...]
    exits: Mapping[str, str]
    weights: Mapping[str, tuple[float, ...]]

    @classmethod
    def wrong_types(cls, content: Mapping[str, Any]) -> list[str]:
        wrong = super().wrong_types(content)
        for name, kind in cls.OPTIONAL.items():
            if name in content and not isinstance(content[name], kind):
                wrong.append(name)
        with contextlib.suppress(BadInput):
            option = strategy_of(str(content.get("sampling"))).option
            if option is not None and option not in content:
                wrong.append(option)
        return wrong

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)
            exits = _exits(content)
            settings = _settings(content, exits)
        members = tuple(content.get("members", ()))
        own, others = tuple(content["weights"]), content.get("weightings", {})
        return {
            "settings": settings,
            "members": members,
            "exits": dict.fromkeys(members, "none") | exits,
            "weights": {name: tuple(others.get(name, own)) for name in exits},
        }

    @property
    def parts(self) -> tuple[str, ...]:
        return self.voters

    @property
    def planned(self) -> bool:
        return self.settings.strategy.planned

    @property
    def voters(self) -> tuple[str, ...]:
        """Members and ensembles, in the order in which they are certified."""
        return tuple(self.exits)

    @property
    def sigma(self) -> float:
        """Noise level."""
        return float(self.content["sigma"])

    @property
    def ensemble(self) -> str | None:
        """The model, where its members were certified too."""
        return self.model if self.members else None

    @property
    def candidates(self) -> tuple[str, ...]:
        """The members of the model, certified or not."""
        return tuple(self.content["candidates"])

    @property
    def weightings(self) -> dict[str, tuple[float, ...]]:
        """The weights of the model and, after them, the others that were certified."""
        others = self.content.get("weightings", ())
        return {name: self.weights[name] for name in (self.model, *others)}

    @property
    def image_options(self) -> dict[str, Any] | None:
        """How image files were read; None where the config does not say."""
        options = {name: self.content.get(name) for name in ("image_size", "convert")}
        return options if [*map(type, options.values())] == [int, bool] else None

    @property
    def device(self) -> str | None:
        """The kind of device that certified; missing from the first runs."""
        return self.content.get("device")

    @property
    def forward_rows(self) -> int:
        """Rows of a forward pass at the start; fewer after running out of memory."""
        return int(self.content["forward_rows"])

    @property
    def precision(self) -> str:
        """Arithmetic of the networks."""
        return str(self.content["precision"])

    @property
    def noise(self) -> str:
        """Distribution of the noise."""
        return str(self.content["noise"])


def _exits(content: Mapping[str, Any]) -> dict[str, str]:
    """The exit of each ensemble of the run; the model itself comes last."""
    others = content.get("exits", {})
    policies = [parse_exit(str(text)) for text in (content["exit"], *others.values())]
    refuse_same_exits(policies)
    wanted = names_with_exits(content["model"], policies[1:])
    if list(others) != wanted:
        raise BadInput("exits", expected=f"the names {wanted}", got=list(others))
    weightings = content.get("weightings", {})
    voters = [*content.get("members", ()), *weightings, *others, content["model"]]
    if not all(isinstance(name, str) for name in voters) or len({*voters}) < len(voters):
        raise BadInput("models", expected="a different name for each", got=voters)
    return {
        **dict.fromkeys(weightings, content["exit"]),
        **others,
        content["model"]: content["exit"],
    }


def _settings(content: Mapping[str, Any], exits: dict[str, str]) -> CertifySettings:
    """The settings of a config; refuses what `sween certify` would refuse."""
    names = {field.name for field in dataclasses.fields(CertifySettings)}
    values = {name: value for name, value in content.items() if name in names}
    settings = CertifySettings(**values | {"radii": tuple(values.get("radii", ()))})
    voters = dict.fromkeys(content.get("members", ()), "none") | exits
    if len(voters) > 1 and not settings.strategy.several_voters:
        raise BadInput("models", expected="one, with that sampling and votes", got=len(voters))
    if settings.votes == "soft" and content["exit"] != "none":
        raise BadInput("exit", expected="none with soft votes", got=content["exit"])
    return settings


@dataclasses.dataclass(frozen=True)
class VerifiedRun:
    """What was checked; `shard` is the part of the run that it is, if it is not all of it."""

    rows: int
    images: int
    models: tuple[str, ...]
    certified: int
    shard: Shard | None


class CertificationRun(RowRun[CertificationConfig, Certificate]):
    """A certification run whose rows were checked; some may still be missing.

    Attributes:
        file: its rows.
        config: its config.toml.
        rows: certificates of all voters, in the order of the file.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(10), n=500, quiet=True
        ... )
        >>> len(run), run.config.model, run.config.sigma
        (10, 'SWEEN-3', 0.5)
        >>> run.average_certified_radius > 0.3
        True
    """

    FILE: ClassVar[str] = CERTIFICATES
    PART: ClassVar[str] = "model"

    @classmethod
    def kinds(cls) -> tuple[type[CertificationConfig], type[Certificate]]:
        return CertificationConfig, Certificate

    def counts(self, row: Certificate) -> Sequence[int]:
        return row.selection_counts

    def row_problems(self) -> Iterable[list[str]]:
        return derivation_problems(self.rows, self.config.settings, self.config.sigma)

    def config_problems(self, row: Certificate) -> Iterator[str]:
        yield from super().config_problems(row)
        content, exit = self.config.content, self.config.exits.get(row.model, "none")
        if row.forward_rows not in self._forward_rows:
            asked = self.config.forward_rows
            yield f"forward_rows is {row.forward_rows}, not {asked} or a halving of it"
        if row.exit != exit:
            yield f"exit is {row.exit!r}, the run's config says {exit!r}"
        unlabeled = content.get("labels") == UNLABELED
        if (row.label is None) != unlabeled:
            yield f"label is {row.label}, the run's data are {'un' * unlabeled}labeled"
        fewest = self._fewest.get(row.model)
        least = row.samples * (fewest or 1)
        most = row.samples * (1 if fewest is None else len(content["candidates"]))
        if not least <= row.member_evaluations <= most:
            yield f"member_evaluations {row.member_evaluations} is not between {least} and {most}"

    @functools.cached_property
    def _forward_rows(self) -> set[int]:
        return {self.config.forward_rows >> halvings for halvings in range(64)} - {0}

    @functools.cached_property
    def _fewest(self) -> dict[str, int]:
        return {
            name: parse_exit(self.config.exits[name]).rule.fewest_members(weights)
            for name, weights in self.config.weights.items()
        }

    def disagreements(self) -> Iterator[Finding]:
        config = self.config
        yield from disagreements(self.rows, config.members, config.exits, config.weights)
        if len(self.rows) == config.rows:
            together = config.settings.strategy.run_problems(self.rows, config.settings)
            for place, problems in enumerate(together):
                yield from ((place, problem) for problem in problems)

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def certificates(self) -> list[Certificate]:
        """Those of the run's own model; `of` has the other voters'."""
        return self.of(self.config.model)

    def of(self, voter: str) -> list[Certificate]:
        """One voter's certificates, in the order of the file.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits")
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> run = sween.certify_dataset(
            ...     smoothed, digits, out="run", indices=range(10), n=500, quiet=True
            ... )
            >>> run.of("SWEEN-3") == run.certificates
            True
        """
        return [certificate for certificate in self.rows if certificate.model == voter]

    def __iter__(self) -> Iterator[Certificate]:
        return iter(self.certificates)

    def __len__(self) -> int:
        return len(self.certificates)

    @property
    def average_certified_radius(self) -> float:
        """The mean radius over all images; misclassified images and abstentions count as 0."""
        return average_certified_radius(self.certificates)

    def certified_accuracy(self, radii: Iterable[float] | float) -> list[float]:
        """At each radius, the share of images classified correctly with at least that radius.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits")
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> run = sween.certify_dataset(
            ...     smoothed, digits, out="run", indices=range(10), n=500, quiet=True
            ... )
            >>> at_zero, at_ten = run.certified_accuracy([0.0, 10.0])
            >>> at_zero > 0.5, at_ten
            (True, 0.0)
        """
        asked = list(radii) if isinstance(radii, Iterable) else [radii]
        return [float(share) for share in certified_accuracy(self.certificates, asked)]


def writing(
    folder: AnyPath,
    content: Mapping[str, Any],
    labels: Sequence[int] | None,
    shard: Shard | None = None,
) -> AbstractContextManager[RowAppender[CertificationConfig, Certificate]]:
    """A certification run to append to; existing rows must have these labels. See `resuming`."""
    known = None if labels is None else dict(enumerate(labels))
    return resuming(CertificationRun, folder, content, shard=shard, label=known)


def rows_written(folder: AnyPath) -> int:
    """How many rows a folder holds, unchecked."""
    path = Path(folder) / CERTIFICATES
    return len(read_rows(path)) if path.is_file() else 0


def verify_folder(folder: AnyPath) -> VerifiedRun:
    """Check each row against its checksum, its own votes, the run's config and the other rows.

    The radii, the prediction and the lower bound are computed again from the counts alone. Missing
    or repeated rows, rows with other settings than the run's, and rows that contradict others of
    their image are found too.

    A folder cannot prove that its votes were ever cast: fabricated votes, labels or seeds with
    recomputed checksums and tags are found only by counting again, with the model and the data (see
    `recount_folder`). The time taken is guarded by the checksum alone.

    Raises:
        CheckFailed: names the first row that differs, and what differs in it.

    Example:
        >>> import sween
        >>> from sween.runs import verify_folder
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> verify_folder("run").rows
        3
    """
    run = CertificationRun.verify(folder)
    return VerifiedRun(
        rows=len(run.rows),
        images=len(run.indices),
        models=run.config.voters,
        certified=sum(not certificate.abstained for certificate in run.rows),
        shard=run.shard,
    )
