"""A run folder: config.toml, environment.json, metrics.jsonl and the run's results.

Files are written under a temporary name and renamed, so a reader never sees a partial file.
"""

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from sween.errors import BadInput, CheckpointError, FolderBusy, first_line
from sween.locks import FolderLock, temporary_file
from sween.paths import AnyPath
from sween.records import COMPRESSIONS, rows_file
from sween.version import __version__


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block succeeds and is removed when it fails."""
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():  # renaming would replace even a device such as stdout
        raise BadInput(str(path), expected="a file", got="something else", fix="name another")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_file(path.parent) as temporary:
            yield temporary
            temporary.chmod(0o644)
            temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write has no name, and the temporary one is unknown
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def to_toml(config: Mapping[str, Any]) -> str:
    """A config as TOML; values are scalars, lists of scalars, or tables of these.

    The standard library reads TOML but does not write it, and run configs need no more than this.
    None is omitted: TOML has no null, and a missing key reads back as the default.
    """
    tables = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    lines = _toml_lines({key: value for key, value in config.items() if key not in tables})
    for key, table in tables.items():
        lines += ["", f"[{_toml_key(key)}]", *_toml_lines(table)]
    return "\n".join(lines) + "\n"


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    return [
        f"{_toml_key(key)} = {_toml_value(value)}"
        for key, value in table.items()
        if value is not None
    ]


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return repr(int(value))
    if isinstance(value, float):
        return repr(float(value))  # numpy's float64 is a float with a different repr
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise TypeError(f"no TOML for {type(value).__name__}")


def read_config(folder: AnyPath) -> dict[str, Any]:
    """Read the config.toml of a run folder."""
    folder = Path(folder)
    path = folder / "config.toml"
    if not path.is_file():
        raise CheckpointError(
            str(folder),
            expected="a run folder with config.toml",
            got="no such folder" if not folder.exists() else "no config.toml in it",
            fix="pass a folder written by sween",
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, no text, too long or nested a value
        raise CheckpointError(
            str(path), expected="TOML", got=first_line(error), fix="restore the file"
        ) from None


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two configs, one readable item per key."""
    keys = sorted({*old, *new})
    return [
        f"{key} {_short(old.get(key))} -> {_short(new.get(key))}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _short(value: object) -> str:
    """A value for display; a fingerprint is abbreviated."""
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,}", value):
        return f"{value[:8]}..."
    return repr(value)


def run_tag(config: Mapping[str, Any]) -> str:
    """A short identifier of a config, stored in every row to identify its run."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder that holds a run with another config: rows of two configs never mix."""
    if (folder / "config.toml").exists():
        differences = config_differences(read_config(folder), tomllib.loads(to_toml(config)))
        if differences:
            raise CheckpointError(
                f"{folder} holds a run with another config ({'; '.join(differences)})",
                fix="choose another folder, or delete that folder",
            )


def start_run(folder: Path, config: Mapping[str, Any], *, finished: bool = False) -> None:
    """Create the folder with config and environment, or check that it holds the same config.

    A run with the same config is resumed; for a different config see `check_config`. Of a finished
    run nothing is left to do, so this environment has no part in it.
    """
    check_config(folder, config)
    if (folder / "config.toml").exists():
        if not finished:
            _note_other_environment(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "environment.json", describe_environment())
    write_text(folder / "config.toml", to_toml(config))


def _note_other_environment(folder: Path) -> None:
    """If a run is resumed on another machine or version, record that in environment-2.json etc."""
    now, files = describe_environment(), environment_files(folder)
    for file in files:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            if same_environment(json.loads(file.read_text(encoding="utf-8")), now):
                return
    write_json(folder / environment_name(len(files)), now)


def environment_name(number: int) -> str:
    """The name of a run's environment file, numbered from 0."""
    return f"environment-{number + 1}.json" if number else "environment.json"


def environment_files(folder: Path) -> list[Path]:
    """The environment files of a run, the first machine's first."""
    return sorted(folder.glob("environment*.json"), key=lambda path: (len(path.name), path.name))


def same_environment(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two environments are the same but for their dates."""
    return {**one, "date": ""} == {**other, "date": ""}


@contextlib.contextmanager
def run_folder(
    folder: Path,
    config: Mapping[str, Any],
    *,
    rows: str,
    others: Sequence[str] = (),
    lock: FolderLock | None = None,
    finished: bool = False,
) -> Iterator[Path]:
    """`start_run` for a block that appends to the file `rows`; yields the path of that file.

    The folder is locked against other writers while the block runs. A block that fails before its
    first row leaves nothing behind, so that no config remains that would refuse the corrected
    command. Rows without a config are refused, since their settings are unknown; so are compressed
    rows, which cannot be appended to.

    Args:
        folder: of the run, new or to be resumed.
        config: of the run.
        rows: name of the file.
        others: names of other files that the block may write before its first row.
        lock: on that folder, if the caller already holds it; otherwise taken for the block.
        finished: see `start_run`.

    Raises:
        FolderBusy: another process or thread is writing there; nothing was changed.
    """
    with FolderLock(folder) if lock is None else contextlib.nullcontext():
        path = folder / rows
        _check_rows(path)
        made = [folder / own for own in (rows, "config.toml", "environment.json", *others)]
        new_files = [file for file in made if not file.exists()]
        try:
            start_run(folder, config, finished=finished)
            yield path
        except FolderBusy:
            raise  # another machine is writing the rows: the new files may belong to its run
        except Exception:
            if not path.exists() or path.stat().st_size == 0:
                with contextlib.suppress(OSError):
                    for file in new_files:
                        file.unlink(missing_ok=True)
            raise


def _check_rows(path: Path) -> None:
    known = rows_file(path.parent, path.name)
    if known is not None and known != path:
        raise BadInput(
            f"{known}: expected uncompressed rows to resume from, got compressed ones; decompress "
            f"it with {COMPRESSIONS[known.suffix].undo}, or choose another folder"
        )
    if path.exists() and not path.with_name("config.toml").exists():
        raise CheckpointError(
            f"{path.parent}: expected config.toml next to {path.name}, got none; restore it, or "
            "choose another folder"
        )


def member_file(folder: Path, name: str) -> Path:
    """The checkpoint of a member: in members/, or in those of the neighbour that is borrowed from.

    Models that ship with sween store a member that several of them share once (`borrows` in
    config.toml). Fingerprints are checked when they are loaded, wherever a member is from.
    """
    own = folder / "members" / f"{name}.safetensors"
    neighbour = read_config(folder).get("borrows")
    if neighbour is None or own.exists():
        return own
    if not isinstance(neighbour, str) or neighbour in ("..", "") or "/" in neighbour:
        raise CheckpointError(
            f"{folder}: borrows: expected the name of a neighbouring folder, got {neighbour!r}; "
            "pass another ensemble"
        )
    return folder.absolute().parent / neighbour / "members" / own.name


def describe_environment() -> dict[str, Any]:
    """Versions, hardware, commit and date, to accompany every measured number."""
    return {
        "sween": __version__,
        "commit": _git_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _git_commit() -> str | None:
    """The commit of this source, with + if the tree has changes; None if unknown.

    SWEEN_COMMIT overrides it where there is no git repository, such as for a copy of the source.
    """
    given = os.environ.get("SWEEN_COMMIT")
    if given:
        return given
    source = Path(__file__).resolve().parent
    command = ["git", "-C", str(source), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
