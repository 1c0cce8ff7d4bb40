"""Re-deriving every certificate of a run from its votes, with no model."""

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Self

from sween.bounds.radius import check_sigma
from sween.ensemble.early_exit import exit_of
from sween.errors import BadInput, CheckFailed, CheckpointError, RunMismatch, SmallSampleWarning
from sween.paths import AnyPath
from sween.records import (
    Certificate,
    from_row,
    read_lines,
    read_rows,
    records_file,
    row_checksum,
    to_line,
)
from sween.runs import read_config, run_tag
from sween.smoothing.agreement import disagreements, ensembles_of, exits_of, weights_of
from sween.smoothing.rederive import budget_problems, derivation_problems
from sween.smoothing.settings import OPTION_OF, CertifySettings
from sween.smoothing.subject import classes_of, indices_of, subject_problems

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
class VerifiedRun:
    """What was checked."""

    rows: int
    images: int
    models: tuple[str, ...]
    certified: int


@dataclasses.dataclass(frozen=True)
class CheckedRun:
    """A run folder whose rows were checked; images may be missing that are still to be certified.

    Attributes:
        file: its rows.
        config: its config.toml.
        certificates: in the order of the file.
    """

    file: Path
    config: Mapping[str, Any]
    certificates: Sequence[Certificate]

    @property
    def models(self) -> tuple[str, ...]:
        """Members and ensembles, in the order in which they are certified."""
        return (*self.config.get("members", ()), *ensembles_of(self.config))

    def where(self, place: int) -> str:
        """The line of a row, in words."""
        return f"{self.file}, line {place + 1} (index {self.certificates[place].index})"


def verify_folder(folder: AnyPath) -> VerifiedRun:
    """Check each row against its checksum, its own votes, the run's config and the other rows.

    The radii, the prediction and the lower bound are computed again from the counts alone. Missing
    or double rows, rows of other settings than the run's, and rows that contradict others of their
    image are found too.

    A folder cannot prove that its votes were ever cast: whoever makes up votes, labels or a seed
    and writes every checksum and tag anew is found only by counting again, with the model and the
    data (see `recount_folder`). The time taken is guarded by the checksum alone.

    Raises:
        CheckFailed: naming the first row that differs and what differs in it.
    """
    folder = Path(folder)
    records_file(folder)  # a folder of something else is bad input, not a run that fails
    with failing_the_check():
        run = read_run(folder)
    check_complete(run)
    return VerifiedRun(
        rows=len(run.certificates),
        images=len({certificate.index for certificate in run.certificates}),
        models=run.models,
        certified=sum(not certificate.abstained for certificate in run.certificates),
    )


@contextlib.contextmanager
def failing_the_check() -> Iterator[None]:
    """Rows that a reader would refuse as bad input fail the check of whoever verifies them."""
    try:
        yield
    except CheckpointError:
        raise  # no config to hold rows against
    except RunMismatch as error:
        raise CheckFailed(error.finding) from None
    except BadInput as error:
        raise CheckFailed(str(error)) from None


def read_run(folder: AnyPath) -> CheckedRun:
    """The certificates of a run folder, each of them checked: what every reader of one goes by.

    Each row must fit its checksum, be of this run by its tag, have the settings of the config, and
    say what its votes say; rows of one image must agree with each other. Rows may be missing, of a
    run that is not finished: `check_complete` judges that.

    Raises:
        CheckpointError: a config that no run can have.
        RunMismatch: naming the first row that differs, and what differs in it.
        BadInput: rows that cannot be read.
    """
    folder = Path(folder)
    file, config = records_file(folder), _checked_config(folder)
    problems = subject_problems(config)
    if problems:
        raise RunMismatch(f"{folder}/config.toml", "; ".join(problems), fix=RESTORE)
    rows = _read(file)
    run = CheckedRun(file, config, [certificate for certificate, _ in rows])
    allowed, expected = {*indices_of(config)}, _Expected.of(config)
    for place, problems in enumerate(derivation_problems(run.certificates, config)):
        certificate = run.certificates[place]
        problems += _config_problems(certificate, config, expected)
        if certificate.index not in allowed:
            problems.append(f"row of {certificate.model} is not among the run's indices")
        problems += rows[place][1]
        if problems:
            raise RunMismatch(run.where(place), "; ".join(problems), fix=RESTORE)
    for place, finding in disagreements(run.certificates, config):
        raise RunMismatch(run.where(place), finding, fix=RESTORE)
    if config["sampling"] == "budget" and len(run.certificates) == config["images"]:
        for place, finding in enumerate(budget_problems(run.certificates, config)):
            if finding:
                raise RunMismatch(run.where(place), finding, fix=RESTORE)
    return run


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


def refuse_other_labels(run: CheckedRun, labels: Sequence[int]) -> None:
    """Refuse rows whose true class is not the data set's, for whoever has the data at hand."""
    for place, certificate in enumerate(run.certificates):
        if certificate.label not in (None, labels[certificate.index]):
            raise RunMismatch(
                run.where(place),
                f"label is {certificate.label}, the data set says {labels[certificate.index]}",
                fix=RESTORE,
            )


def check_complete(run: CheckedRun) -> None:
    """Whether every image has a row of every model.

    Raises:
        CheckFailed: naming the first that is missing.
    """
    seen = {(certificate.model, certificate.index) for certificate in run.certificates}
    wanted = indices_of(run.config)
    # Every row is of one of them, and none comes twice: `read_run` saw to that.
    rows = len(wanted) * len(run.models)
    if len(seen) < rows:
        keys = ((model, index) for index in wanted for model in run.models)
        model, index = next(key for key in keys if key not in seen)
        raise CheckFailed(
            f"{run.file}: {rows - len(seen)} of {rows} rows are missing, the first that of {model} "
            f"at index {index}; run the same `sween certify` again to finish"
        )


def _checked_config(folder: Path) -> dict[str, Any]:
    """The run's config; one from which a setting was taken would let any row pass."""
    config = read_config(folder)
    wrong = [name for name, kind in _CONFIG.items() if not isinstance(config.get(name), kind)]
    for name, kind in _OPTIONAL.items():
        if name in config and not isinstance(config[name], kind):
            wrong.append(name)
    needed = OPTION_OF.get(str(config.get("sampling")))
    if needed is not None and needed not in config:
        wrong.append(needed)
    if wrong:
        raise CheckpointError(
            f"{folder}/config.toml",
            expected=f"the config of `sween certify` with {', '.join(wrong)}",
            got=", ".join(repr(config.get(name)) for name in wrong),
            fix="restore the file from its source",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)
            check_sigma(config["sigma"])
            settings_of(config)
            run_tag(config)  # JSON has no dates, nor numbers that are none
    except (BadInput, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder}/config.toml",
            expected="settings that fit together",
            got=error,
            fix="restore it",
        ) from None
    return config


def settings_of(config: Mapping[str, Any]) -> CertifySettings:
    """The settings that a run's config tells of; refuses what `sween certify` would refuse."""
    if config["votes"] == "soft" and config["exit"] != "none":
        raise BadInput("exit", expected="none with soft votes", got=config["exit"])
    models = (*config.get("members", ()), *ensembles_of(config))
    if len(models) > 1 and (config["votes"] == "soft" or config["sampling"] != "fixed"):
        raise BadInput("models", expected="one, with that sampling and votes", got=len(models))
    if not all(isinstance(name, str) for name in models) or len({*models}) < len(models):
        raise BadInput("models", expected="a different name for each", got=list(models))
    policies = [exit_of(str(text)) for text in (config["exit"], *config.get("exits", {}).values())]
    names = [policy.name for policy in policies]
    wanted = [f"{config['model']}+{name}" for name in names[1:]]
    if len({*names}) < len(names):
        raise BadInput("exits", expected="those of certify, each once", got=", ".join(names))
    if list(config.get("exits", ())) != wanted:
        raise BadInput("exits", expected=f"the names {wanted}", got=list(config["exits"]))
    fields = {field.name for field in dataclasses.fields(CertifySettings)}
    content = {name: value for name, value in config.items() if name in fields}
    return CertifySettings(**content | {"radii": tuple(content.get("radii", ()))})


@dataclasses.dataclass(frozen=True)
class _Expected:
    """What a config says of every row, worked out once."""

    tag: str
    exits: Mapping[str, str]
    fewest: Mapping[str, int]
    classes: int | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        members = dict.fromkeys(config.get("members", ()), "none")
        fewest = {name: _fewest_members(name, config) for name in ensembles_of(config)}
        return cls(run_tag(config), members | exits_of(config), fewest, classes_of(config))


def _config_problems(
    certificate: Certificate, config: Mapping[str, Any], expected: _Expected
) -> list[str]:
    """What in a row is not as the run's config says."""
    problems = []
    for name in ("n0", "alpha", "sigma", "bound", "sampling", "seed"):
        if getattr(certificate, name) != config[name]:
            got = json.dumps(getattr(certificate, name))
            problems.append(f"{name} is {got}, the run's config says {json.dumps(config[name])}")
    rows, asked = certificate.forward_rows, config["forward_rows"]
    if rows < 1 or rows not in {asked >> halvings for halvings in range(64)}:
        problems.append(f"forward_rows is {rows}, the run's config says {asked} or a halving of it")
    if certificate.model not in expected.exits:
        problems.append(f"model {certificate.model!r} is not of this run")
    exit = expected.exits.get(certificate.model, "none")
    if certificate.exit != exit:
        problems.append(f"exit is {certificate.exit!r}, the run's config says {exit!r}")
    for name in ("precision", "noise", "votes"):
        if getattr(certificate, name) != config[name]:
            problems.append(f"{name} is {getattr(certificate, name)!r}, not {config[name]!r}")
    if certificate.run != expected.tag:
        problems.append(
            f"it belongs to a run of another config ({certificate.run}, not {expected.tag})"
        )
    found = len(certificate.selection_counts)
    classes = expected.classes or found
    if found != classes:
        problems.append(f"counts are of {found} classes, {config['dataset']} has {classes}")
    if certificate.label is None or not 0 <= certificate.label < classes:
        problems.append(f"label is {certificate.label}, not one of {classes} classes")
    fewest = expected.fewest.get(certificate.model)
    least = certificate.samples * (fewest or 1)
    most = certificate.samples * (1 if fewest is None else len(config["candidates"]))
    if not least <= certificate.member_evaluations <= most:
        problems.append(
            f"member_evaluations {certificate.member_evaluations} is not between {least} and {most}"
        )
    return problems


def _fewest_members(model: str, config: Mapping[str, Any]) -> int:
    """How many members an ensemble evaluates on every input at least.

    An exact exit cannot stop before its members hold half of the weight: until then those left
    could turn any answer.
    """
    name, weights = exits_of(config)[model].partition("(")[0], weights_of(config)[model]
    if name == "none":
        return len(weights)
    if name == "paper":
        return 1
    held = 0.0
    for number, weight in enumerate(sorted(weights, reverse=True), start=1):
        held += weight
        if held > 0.5 - 1e-6:
            return number
    return len(weights)
