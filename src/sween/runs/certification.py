"""Certification runs: a folder of certificates with the config that they belong to.

Every reader and writer of such a folder goes through `CertificationRun`.
"""

import contextlib
import dataclasses
import functools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Self

from sween.bounds.radius import check_sigma
from sween.ensemble.early_exit import parse_exit
from sween.errors import BadInput, CheckFailed, CheckpointError, RunMismatch, SmallSampleWarning
from sween.evaluation import average_certified_radius, certified_accuracy
from sween.paths import AnyPath
from sween.records import (
    Certificate,
    RowWriter,
    from_row,
    read_lines,
    read_rows,
    records_file,
    row_checksum,
    to_line,
    to_row,
)
from sween.run_folder import read_config, run_folder, run_tag
from sween.runs.agreement import disagreements, fewest_members
from sween.runs.subject import SubjectConfig, classes_of, indices_of, subject_problems
from sween.sampling import CertifySettings
from sween.sampling.rederive import derivation_problems
from sween.sampling.strategy import strategy_of

ROWS = "certificates.jsonl"

UNLABELED = "none"
"""In place of a fingerprint, of images whose true classes are not known."""

_CONFIG: dict[str, type | UnionType] = {
    "dataset": str,
    "images": int,
    "model": str,
    "indices": str,
    "exit": str,
    "n0": int,
    "n": int,
    "alpha": int | float,
    "sigma": int | float,
    "bound": str,
    "sampling": str,
    "seed": int,
    "candidates": list,
    "weights": list,
    "forward_rows": int,
    "precision": str,
    "noise": str,
    "votes": str,
}
"""What rows are held against, and its types."""


_OPTIONAL: dict[str, type | UnionType] = {
    "members": list,
    "weightings": dict,
    "exits": dict,
    "radii": list,
    "tolerance": float,
    "budget": int,
}

RESTORE = "restore the folder from its source, or run it again into a fresh one"


@dataclasses.dataclass(frozen=True)
class CertificationConfig(SubjectConfig):
    """The config of a certification run: what was certified, and how.

    Attributes:
        content: the whole of it, as config.toml has it.
        settings: of the sampling.
        sigma: noise level.
        model: the run's own ensemble.
        members: those that were certified on their own too.
        exits: of every voter, members first, the model last.
        weights: of every ensemble.
        indices: of the test images.
    """

    content: Mapping[str, Any]
    settings: CertifySettings
    sigma: float
    model: str
    members: tuple[str, ...]
    exits: Mapping[str, str]
    weights: Mapping[str, tuple[float, ...]]
    indices: tuple[int, ...]

    @classmethod
    def of(cls, content: Mapping[str, Any], *, where: str = "config") -> Self:
        """A config whose parts fit together.

        Raises:
            CheckpointError: a setting is missing, or settings that no run can have.
            RunMismatch: what it says of images, members and weights contradicts itself.
        """
        _check_types(content, where)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SmallSampleWarning)
                check_sigma(content["sigma"])
                exits = _exits(content)
                settings = _settings(content, exits)
                run_tag(content)  # JSON has no dates, nor numbers that are none
        except (BadInput, TypeError, ValueError) as error:
            raise CheckpointError(
                where, expected="settings that fit together", got=error, fix="restore it"
            ) from None
        problems = subject_problems(content)
        if problems:
            raise RunMismatch(where, "; ".join(problems), fix=RESTORE)
        if content.get("labels") == UNLABELED and classes_of(content) is not None:
            finding = f"labels is {UNLABELED!r}, but {content['dataset']} has labels"
            raise RunMismatch(where, finding, fix=RESTORE)
        members = tuple(content.get("members", ()))
        own, others = tuple(content["weights"]), content.get("weightings", {})
        return cls(
            content=content,
            settings=settings,
            sigma=content["sigma"],
            model=content["model"],
            members=members,
            exits=dict.fromkeys(members, "none") | exits,
            weights={name: tuple(others.get(name, own)) for name in exits},
            indices=tuple(indices_of(content)),
        )

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """The config of a run folder."""
        return cls.of(read_config(folder), where=f"{folder}/config.toml")

    @property
    def voters(self) -> tuple[str, ...]:
        """Members and ensembles, in the order in which they are certified."""
        return tuple(self.exits)

    @functools.cached_property
    def tag(self) -> str:
        """What rows of this config carry."""
        return run_tag(self.content)

    @property
    def fingerprint(self) -> str | None:
        """Of the model's weights, where recorded."""
        return self.content.get("fingerprint")

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
        """The kind of device that certified; unknown of the first runs."""
        return self.content.get("device")

    @property
    def forward_rows(self) -> int:
        """Rows of a forward pass at the start; fewer after running out of memory."""
        return int(self.content["forward_rows"])

    @property
    def precision(self) -> str:
        """The arithmetic that voted."""
        return str(self.content["precision"])

    @property
    def noise(self) -> str:
        """The distribution of the noise."""
        return str(self.content["noise"])

    @property
    def classes(self) -> int | None:
        """The number of classes, where the data set's name says it."""
        return classes_of(self.content)


def _check_types(content: Mapping[str, Any], where: str) -> None:
    """Refuse a config from which a setting was taken: it would let any row pass."""
    wrong = [name for name, kind in _CONFIG.items() if not isinstance(content.get(name), kind)]
    for name, kind in _OPTIONAL.items():
        if name in content and not isinstance(content[name], kind):
            wrong.append(name)
    with contextlib.suppress(BadInput):
        option = strategy_of(str(content.get("sampling"))).option
        if option is not None and option not in content:
            wrong.append(option)
    if wrong:
        raise CheckpointError(
            where,
            expected=f"the config of `sween certify` with {', '.join(wrong)}",
            got=", ".join(repr(content.get(name)) for name in wrong),
            fix="restore the file from its source",
        )


def _exits(content: Mapping[str, Any]) -> dict[str, str]:
    """The exit of each ensemble of the run: other weightings and exits, and the model's own."""
    others = content.get("exits", {})
    policies = [parse_exit(str(text)) for text in (content["exit"], *others.values())]
    names = [policy.name for policy in policies]
    if len({*names}) < len(names):
        raise BadInput("exits", expected="those of certify, each once", got=", ".join(names))
    wanted = [f"{content['model']}+{name}" for name in names[1:]]
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
    """The settings that a config tells of; refuses what `sween certify` would refuse."""
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
    """What was checked."""

    rows: int
    images: int
    models: tuple[str, ...]
    certified: int


@dataclasses.dataclass(frozen=True)
class CertificationRun:
    """A certification run whose rows were checked; images may be missing that are still to come.

    Attributes:
        file: its rows.
        config: its config.toml.
        rows: certificates of all voters, in the order of the file.
    """

    file: Path
    config: CertificationConfig
    rows: Sequence[Certificate]

    @classmethod
    def read(cls, folder: AnyPath) -> Self:
        """The certificates of a run folder, each of them checked.

        Each row must match its checksum, be of this run by its tag, have the settings of the
        config, and say what its votes say; rows of one image must agree with each other. Rows may
        be missing, of a run that is not finished: `check_complete` judges that.

        Raises:
            CheckpointError: a config that no run can have.
            RunMismatch: naming the first row that differs, and what differs in it.
            BadInput: rows that cannot be read.
        """
        folder = Path(folder)
        file, config = records_file(folder), CertificationConfig.read(folder)
        found = _read(file)
        run = cls(file, config, [certificate for certificate, _ in found])
        allowed, expected = {*config.indices}, _Expected(config)
        derived = derivation_problems(run.rows, config.settings, config.sigma)
        for place, (certificate, problems) in enumerate(zip(run.rows, derived, strict=True)):
            problems += expected.problems(certificate)
            if certificate.index not in allowed:
                problems.append(f"row of {certificate.model} is not among the run's indices")
            problems += found[place][1]
            if problems:
                raise RunMismatch(run.where(place), "; ".join(problems), fix=RESTORE)
        for place, finding in disagreements(run.rows, config.members, config.exits, config.weights):
            raise RunMismatch(run.where(place), finding, fix=RESTORE)
        if len(run.rows) == len(config.indices) * len(config.voters):
            together = config.settings.strategy.run_problems(run.rows, config.settings)
            for place, problems in enumerate(together):
                if problems:
                    raise RunMismatch(run.where(place), "; ".join(problems), fix=RESTORE)
        return run

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def certificates(self) -> list[Certificate]:
        """Those of the run's own model; `of` has the other voters'."""
        return self.of(self.config.model)

    def of(self, voter: str) -> list[Certificate]:
        """One voter's certificates, in the order of the file."""
        return [certificate for certificate in self.rows if certificate.model == voter]

    def __iter__(self) -> Iterator[Certificate]:
        return iter(self.certificates)

    def __len__(self) -> int:
        return len(self.certificates)

    @property
    def average_certified_radius(self) -> float:
        """The mean radius over all images, 0 where the answer is wrong or abstains."""
        return average_certified_radius(self.certificates)

    def certified_accuracy(self, radii: Iterable[float]) -> list[float]:
        """At each radius, the share of images classified correctly with at least that radius."""
        return [float(share) for share in certified_accuracy(self.certificates, list(radii))]

    def where(self, place: int) -> str:
        """The line of a row, in words."""
        return f"{self.file}, line {place + 1} (index {self.rows[place].index})"

    def check_complete(self) -> None:
        """Whether every image has a row of every voter.

        Raises:
            CheckFailed: naming the first that is missing.
        """
        seen = {(certificate.model, certificate.index) for certificate in self.rows}
        wanted, voters = self.config.indices, self.config.voters
        # Every row is of one of them, and none comes twice: `read` saw to that.
        rows = len(wanted) * len(voters)
        if len(seen) < rows:
            keys = ((voter, index) for index in wanted for voter in voters)
            voter, index = next(key for key in keys if key not in seen)
            raise CheckFailed(
                f"{self.file}: {rows - len(seen)} of {rows} rows are missing, the first that of "
                f"{voter} at index {index}; run the same `sween certify` again to finish"
            )

    def check_labels(self, labels: Sequence[int]) -> None:
        """Refuse rows whose true class is not the one that the data set gives."""
        for place, certificate in enumerate(self.rows):
            if certificate.label not in (None, labels[certificate.index]):
                raise RunMismatch(
                    self.where(place),
                    f"label is {certificate.label}, the data set says {labels[certificate.index]}",
                    fix=RESTORE,
                )


class CertificateAppender:
    """Appends certificates to a run that is being written; see `writing`."""

    def __init__(
        self, writer: RowWriter, config: CertificationConfig, rows: Sequence[Certificate]
    ) -> None:
        self._writer, self._config = writer, config
        self._known = {(row.model, row.index) for row in rows}
        self.rows = list(rows)

    @property
    def left(self) -> list[int]:
        """Images that lack a row of some voter."""
        return [
            index
            for index in self._config.indices
            if any((voter, index) not in self._known for voter in self._config.voters)
        ]

    def append(self, certificates: Iterable[Certificate]) -> list[Certificate]:
        """Write the certificates of one image, those that are not there yet; with the run's tag."""
        fresh = [
            dataclasses.replace(certificate, run=self._config.tag)
            for certificate in certificates
            if (certificate.model, certificate.index) not in self._known
        ]
        self._writer.append([to_row(certificate) for certificate in fresh])
        self._known |= {(certificate.model, certificate.index) for certificate in fresh}
        self.rows += fresh
        return fresh


@contextlib.contextmanager
def writing(
    folder: AnyPath, content: Mapping[str, Any], labels: Sequence[int] | None
) -> Iterator[CertificateAppender]:
    """A certification run to append to: new, or resumed where it stopped.

    A kill at any instant loses at most the row being written. What an interrupted run left is
    checked first, as `CertificationRun.read` does: rows that `sween verify` refuses are not added
    to. Nobody else writes in the folder meanwhile.

    Args:
        folder: of the run.
        content: of its config; a folder with another one is refused.
        labels: true classes of the data set by index, to hold rows against.
    """
    folder = Path(folder)
    with run_folder(folder, content, rows=ROWS) as path:
        rows: Sequence[Certificate] = ()
        if path.exists():
            run = CertificationRun.read(folder)
            if labels is not None:
                run.check_labels(labels)
            rows = run.rows
        config = CertificationConfig.read(folder)
        with RowWriter(path) as writer:
            yield CertificateAppender(writer, config, rows)


def rows_written(folder: AnyPath) -> int:
    """How many rows a folder holds, without a look at them."""
    path = Path(folder) / ROWS
    return len(read_rows(path)) if path.is_file() else 0


def verify_folder(folder: AnyPath) -> VerifiedRun:
    """Check each row against its checksum, its own votes, the run's config and the other rows.

    The radii, the prediction and the lower bound are computed again from the counts alone. Missing
    or double rows, rows of other settings than the run's, and rows that contradict others of their
    image are found too.

    A folder cannot prove that its votes were ever cast: made-up votes, labels or seeds whose
    checksums and tags were written anew are found only by counting again, with the model and the
    data (see `recount_folder`). The time taken is guarded by the checksum alone.

    Raises:
        CheckFailed: naming the first row that differs and what differs in it.
    """
    folder = Path(folder)
    records_file(folder)  # a folder of something else is bad input, not a run that fails
    with failing_the_check():
        run = CertificationRun.read(folder)
    run.check_complete()
    return VerifiedRun(
        rows=len(run.rows),
        images=len({certificate.index for certificate in run.rows}),
        models=run.config.voters,
        certified=sum(not certificate.abstained for certificate in run.rows),
    )


@contextlib.contextmanager
def failing_the_check() -> Iterator[None]:
    """Rows that a reader would refuse as bad input fail the check here."""
    try:
        yield
    except CheckpointError:
        raise  # no config to hold rows against
    except RunMismatch as error:
        raise CheckFailed(error.finding) from None
    except BadInput as error:
        raise CheckFailed(str(error)) from None


def _read(file: Path) -> list[tuple[Certificate, list[str]]]:
    """The certificates of a file, each with what is wrong with its text."""
    found = []
    rows = zip(read_rows(file), read_lines(file), strict=False)
    for number, (row, line) in enumerate(rows, start=1):
        certificate = from_row(row, where=f"{file}, line {number} (index {row.get('index')})")
        problems = []
        if row.get("checksum") != row_checksum(row):
            problems.append("checksum does not match the row's content")
        if to_line(row) != line:
            # Other digits may read back as the same number; of a name that comes twice one is lost.
            problems.append("the text is not as sween writes this row")
        found.append((certificate, problems))
    return found


class _Expected:
    """What a config says of every row, worked out once."""

    def __init__(self, config: CertificationConfig) -> None:
        self.config, self.classes = config, config.classes
        self.fewest = {
            name: fewest_members(config.exits[name], weights)
            for name, weights in config.weights.items()
        }
        asked = config.forward_rows
        self.rows = {asked >> halvings for halvings in range(64)} - {0}

    def problems(self, row: Certificate) -> list[str]:
        """What in a row is not as the run's config says."""
        content, config, problems = self.config.content, self.config, list[str]()
        for name in ("n0", "alpha", "sigma", "bound", "sampling", "seed"):
            if getattr(row, name) != content[name]:
                got = json.dumps(getattr(row, name))
                said = json.dumps(content[name])
                problems.append(f"{name} is {got}, the run's config says {said}")
        if row.forward_rows not in self.rows:
            problems.append(
                f"forward_rows is {row.forward_rows}, the run's config says "
                f"{config.forward_rows} or a halving of it"
            )
        if row.model not in config.exits:
            problems.append(f"model {row.model!r} is not of this run")
        exit = config.exits.get(row.model, "none")
        if row.exit != exit:
            problems.append(f"exit is {row.exit!r}, the run's config says {exit!r}")
        for name in ("precision", "noise", "votes"):
            if getattr(row, name) != content[name]:
                problems.append(f"{name} is {getattr(row, name)!r}, not {content[name]!r}")
        if row.run != config.tag:
            problems.append(f"it belongs to a run of another config ({row.run}, not {config.tag})")
        found = len(row.selection_counts)
        classes = self.classes or found
        if found != classes:
            problems.append(f"counts are of {found} classes, {content['dataset']} has {classes}")
        if row.label is not None and not 0 <= row.label < classes:
            problems.append(f"label is {row.label}, not one of {classes} classes")
        unlabeled = content.get("labels") == UNLABELED
        if (row.label is None) != unlabeled:
            said = "missing, but the run's data have labels"
            problems.append(f"label is {row.label if unlabeled else said}")
        fewest = self.fewest.get(row.model)
        least = row.samples * (fewest or 1)
        most = row.samples * (1 if fewest is None else len(content["candidates"]))
        if not least <= row.member_evaluations <= most:
            problems.append(
                f"member_evaluations {row.member_evaluations} is not between {least} and {most}"
            )
        return problems
