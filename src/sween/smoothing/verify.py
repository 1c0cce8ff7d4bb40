"""Re-deriving every certificate of a run from its votes, with no model."""

import dataclasses
import json
import warnings
from pathlib import Path
from types import UnionType
from typing import Any

from sween.data.selection import parse_indices
from sween.ensemble.early_exit import EXITS
from sween.errors import BadInput, CheckFailed, CheckpointError, SmallSampleWarning
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
from sween.smoothing.rederive import check_budget, derivation_problems, size_problems
from sween.smoothing.settings import OPTION_OF, CertifySettings

_CONFIG: dict[str, type | UnionType] = {
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


@dataclasses.dataclass(frozen=True)
class VerifiedRun:
    """What was checked."""

    rows: int
    images: int
    models: tuple[str, ...]
    certified: int


def verify_folder(folder: AnyPath) -> VerifiedRun:
    """Check each row against its checksum, its own votes and the run's config.

    The radii, the prediction and the lower bound are computed again from the counts alone. Missing
    or double rows, and rows of other settings than the run's, are found too. What votes cannot
    prove is guarded by the checksum alone: the true label, the time taken, and how many members an
    early exit evaluated.

    Raises:
        CheckFailed: naming the first row that differs and what differs in it.
    """
    folder = Path(folder)
    file, config = records_file(folder), _checked_config(folder)
    try:
        rows = read_rows(file)
    except BadInput as error:
        raise CheckFailed(str(error)) from None
    certificates = [
        _check_row(row, line, f"{file.name}, line {number} (index {row.get('index')})", config)
        for number, (row, line) in enumerate(zip(rows, read_lines(file), strict=False), start=1)
    ]
    models = (*config.get("members", ()), *_ensembles(config))
    _check_complete(certificates, models, config, file.name)
    _check_exact_exits(certificates, file.name)
    if config["sampling"] == "budget":
        check_budget(certificates, config, file.name)
    return VerifiedRun(
        rows=len(certificates),
        images=len({certificate.index for certificate in certificates}),
        models=models,
        certified=sum(not certificate.abstained for certificate in certificates),
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
            settings_of(config)
    except BadInput as error:
        raise CheckpointError(
            f"{folder}/config.toml",
            expected="settings that fit together",
            got=error,
            fix="restore it",
        ) from None
    return config


def settings_of(config: dict[str, Any]) -> CertifySettings:
    """The settings that a run's config tells of; refuses what `sween certify` would refuse."""
    if config["votes"] == "soft" and config["exit"] != "none":
        raise BadInput("exit", expected="none with soft votes", got=config["exit"])
    models = (*config.get("members", ()), *_ensembles(config))
    if len(models) > 1 and (config["votes"] == "soft" or config["sampling"] != "fixed"):
        raise BadInput("models", expected="one, with that sampling and votes", got=len(models))
    names = [config["exit"], *config.get("exits", {}).values()]
    policies = [str(name).partition("(")[0] for name in names]
    wanted = [f"{config['model']}+{policy}" for policy in policies[1:]]
    if not {*policies} <= {*EXITS} or len({*policies}) < len(policies):
        raise BadInput("exits", expected="those of certify, each once", got=", ".join(policies))
    if list(config.get("exits", ())) != wanted:
        raise BadInput("exits", expected=f"the names {wanted}", got=list(config["exits"]))
    fields = {field.name for field in dataclasses.fields(CertifySettings)}
    content = {name: value for name, value in config.items() if name in fields}
    return CertifySettings(**content | {"radii": tuple(content.get("radii", ()))})


def _check_row(row: dict[str, Any], line: bytes, where: str, config: dict[str, Any]) -> Certificate:
    try:
        certificate = from_row(row, where=where)
    except (BadInput, TypeError, ValueError) as error:
        raise CheckFailed(f"{where}: {error}") from None
    try:
        problems = [
            *derivation_problems(certificate, config),
            *_config_problems(certificate, config),
        ]
    except (BadInput, TypeError, ValueError, IndexError) as error:
        raise CheckFailed(f"{where}: {error}") from None
    if row.get("checksum") != row_checksum(row):
        problems.append("checksum does not match the row's content")
    if to_line(row) != line:
        # Other digits may read back as the same number, and of a name that comes twice one is lost.
        problems.append("the text is not as sween writes this row")
    if problems:
        raise CheckFailed(f"{where}: {'; '.join(problems)}")
    return certificate


def _config_problems(certificate: Certificate, config: dict[str, Any]) -> list[str]:
    problems = []
    for name in ("n0", "alpha", "sigma", "bound", "sampling", "seed"):
        if getattr(certificate, name) != config[name]:
            got = json.dumps(getattr(certificate, name))
            problems.append(f"{name} is {got}, the run's config says {json.dumps(config[name])}")
    if certificate.sampling == config["sampling"]:
        problems += size_problems(certificate, config)
    rows, asked = certificate.forward_rows, config["forward_rows"]
    if rows < 1 or rows not in {asked >> halvings for halvings in range(64)}:
        problems.append(f"forward_rows is {rows}, the run's config says {asked} or a halving of it")
    is_ensemble = certificate.model in _ensembles(config)
    if not is_ensemble and certificate.model not in config.get("members", ()):
        problems.append(f"model {certificate.model!r} is not of this run")
    exits = dict.fromkeys(_ensembles(config), config["exit"]) | config.get("exits", {})
    wanted_exit = exits.get(certificate.model, "none")
    if certificate.exit != wanted_exit:
        problems.append(f"exit is {certificate.exit!r}, the run's config says {wanted_exit!r}")
    for name in ("precision", "noise", "votes"):
        if getattr(certificate, name) != config[name]:
            problems.append(f"{name} is {getattr(certificate, name)!r}, not {config[name]!r}")
    if certificate.run != run_tag(config):
        problems.append("it belongs to a run of another config")
    most = certificate.samples * (len(config["candidates"]) if is_ensemble else 1)
    least = most if wanted_exit == "none" else certificate.samples
    if not least <= certificate.member_evaluations <= most:
        problems.append(
            f"member_evaluations {certificate.member_evaluations} is not between {least} and {most}"
        )
    return problems


def _ensembles(config: dict[str, Any]) -> tuple[str, ...]:
    """The run's ensembles: other weightings and exits, and the one it is named after."""
    return (*config.get("weightings", ()), *config.get("exits", ()), config["model"])


def _check_exact_exits(certificates: list[Certificate], file: str) -> None:
    """An exact exit answers as the full ensemble does, noise for noise: the votes are the same."""
    full = {
        (certificate.model.removesuffix("+none"), certificate.index): certificate
        for certificate in certificates
        if certificate.exit == "none"
    }
    for number, certificate in enumerate(certificates, start=1):
        whole = full.get((certificate.model.removesuffix("+exact"), certificate.index))
        if certificate.exit != "exact" or whole is None:
            continue
        for name in ("selection_counts", "estimation_counts"):
            if getattr(certificate, name) != getattr(whole, name):
                raise CheckFailed(
                    f"{file}, line {number} (index {certificate.index}): {name} with an exact exit "
                    "are not those of the full ensemble"
                )


def _check_complete(
    certificates: list[Certificate], models: tuple[str, ...], config: dict[str, Any], file: str
) -> None:
    wanted = parse_indices(indices=config["indices"], every=None, everything=False, size=2**62)
    allowed = set(wanted)
    seen: set[tuple[str, int]] = set()
    labels: dict[int, int | None] = {}
    for number, certificate in enumerate(certificates, start=1):
        key = (certificate.model, certificate.index)
        if key in seen or key[1] not in allowed:
            what = "comes twice" if key in seen else "is not among the run's indices"
            raise CheckFailed(f"{file}, line {number} (index {key[1]}): row of {key[0]} {what}")
        seen.add(key)
        if labels.setdefault(certificate.index, certificate.label) != certificate.label:
            raise CheckFailed(
                f"{file}, line {number} (index {key[1]}): label {certificate.label} is not the "
                f"{labels[certificate.index]} of the image's other rows"
            )
    missing = [(model, index) for index in wanted for model in models if (model, index) not in seen]
    if missing:
        raise CheckFailed(
            f"{file}: {len(missing)} of {len(wanted) * len(models)} rows are missing, the first "
            f"that of {missing[0][0]} at index {missing[0][1]}; run the same `sween certify` again "
            "to finish"
        )
