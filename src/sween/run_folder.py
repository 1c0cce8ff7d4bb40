"""A run folder: config.toml, environment.json, metrics.jsonl and what the run made.

Files are written beside their final name and renamed, so that a reader never sees half of one.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from sween.errors import BadInput, CheckpointError, FolderBusy
from sween.locks import FolderLock, temporary_file
from sween.paths import AnyPath
from sween.version import __version__


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block succeeds and is removed when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_file(path.parent) as temporary:
            yield temporary
            temporary.chmod(0o644)
            temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write knows no name, and nobody knows the temporary
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def to_toml(config: Mapping[str, Any]) -> str:
    """TOML of a config whose values are plain, lists of plain values, or tables of those.

    The standard library reads TOML but does not write it; run configs need no more than this.
    None is left out: TOML has no null, and an absent key reads back as the default.
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
        return repr(float(value))  # numpy's float64 is a float with a repr of its own
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise TypeError(f"no TOML for {type(value).__name__}")


def read_config(folder: AnyPath) -> dict[str, Any]:
    """The config.toml of a run folder."""
    folder = Path(folder)
    path = folder / "config.toml"
    if not path.is_file():
        raise CheckpointError(
            str(folder),
            expected="a run folder with config.toml",
            got="no such folder" if not folder.exists() else "no config.toml in it",
            fix="name a folder written by sween",
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            str(path), expected="TOML", got=error, fix="restore the file"
        ) from None


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two configs, one readable item a key."""
    keys = sorted({*old, *new})
    return [
        f"{key} {_short(old.get(key))} -> {_short(new.get(key))}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _short(value: object) -> str:
    """A value for people; of a fingerprint its beginning."""
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,}", value):
        return f"{value[:8]}..."
    return repr(value)


def run_tag(config: Mapping[str, Any]) -> str:
    """A short name for a config, which rows carry to say which run they belong to."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder that holds a run with another config: rows of two settings never mix."""
    if (folder / "config.toml").exists():
        differences = config_differences(read_config(folder), tomllib.loads(to_toml(config)))
        if differences:
            raise CheckpointError(
                f"{folder} holds a run with another config ({'; '.join(differences)})",
                fix="choose another --out, or delete that folder",
            )


def start_run(folder: Path, config: Mapping[str, Any]) -> None:
    """Create the folder with config and environment, or check that it holds the same config.

    A folder with the same config is taken up again; see `check_config` for one with another.
    """
    check_config(folder, config)
    if (folder / "config.toml").exists():
        _note_other_environment(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "environment.json", describe_environment())
    write_text(folder / "config.toml", to_toml(config))


def _note_other_environment(folder: Path) -> None:
    """A run taken up on another machine or version says so in environment-2.json and so on."""
    now = describe_environment()
    files = sorted(folder.glob("environment*.json"), key=lambda path: (len(path.name), path.name))
    for file in files:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            known = json.loads(file.read_text(encoding="utf-8"))
            if {**known, "date": ""} == {**now, "date": ""}:
                return
    name = f"environment-{len(files) + 1}.json" if files else "environment.json"
    write_json(folder / name, now)


@contextlib.contextmanager
def run_folder(
    folder: Path, config: Mapping[str, Any], *, rows: str, lock: FolderLock | None = None
) -> Iterator[Path]:
    """`start_run` for a block that appends to the file `rows`, whose path it gives.

    Nobody else writes in the folder while the block runs. A block that fails before its first row
    leaves nothing behind: no folder that holds a config and would refuse the corrected command.
    Rows without a config are refused, since nobody can tell what they are rows of; so are packed
    rows, since one cannot append to them.

    Args:
        folder: of the run, new or to be taken up.
        config: of the run.
        rows: name of the file.
        lock: of that folder, where the caller has it already; taken for the block otherwise.

    Raises:
        FolderBusy: another process or thread writes there; nothing was touched.
    """
    with FolderLock(folder) if lock is None else contextlib.nullcontext():
        path = folder / rows
        _check_rows(path)
        made = (path, folder / "config.toml", folder / "environment.json")
        new_files = [file for file in made if not file.exists()]
        try:
            start_run(folder, config)
            yield path
        except FolderBusy:
            raise  # the rows are being written from another machine: the files may be its own
        except Exception:
            if not path.exists() or path.stat().st_size == 0:
                with contextlib.suppress(OSError):
                    for file in new_files:
                        file.unlink(missing_ok=True)
            raise


def _check_rows(path: Path) -> None:
    if not path.exists() and path.with_name(f"{path.name}.gz").exists():
        raise BadInput(
            f"{path}.gz",
            expected="unpacked rows to go on from",
            got="packed ones",
            fix="unpack it with gunzip, or choose another --out",
        )
    if path.exists() and not path.with_name("config.toml").exists():
        raise CheckpointError(
            str(path.parent),
            expected=f"config.toml beside {path.name}",
            got="none",
            fix="restore it, or choose another --out",
        )


def describe_environment() -> dict[str, Any]:
    """Versions, hardware, commit and date: what a measured number needs beside it."""
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
    """The commit this source runs from, with + where the tree has changes; None where unknown.

    SWEEN_COMMIT says it where git cannot, as on a machine that was sent the source alone.
    """
    told = os.environ.get("SWEEN_COMMIT")
    if told:
        return told
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
