"""Installs models from archives into the user's folder, and removes them.

A model is unpacked next to its place, checked, and renamed: a reader sees all of it or nothing.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sween.errors import BadInput, SweenError, UnknownName
from sween.locks import FolderLock
from sween.paths import AnyPath
from sween.zoo.archive import Archive, check_ensemble, describe_files, open_archive
from sween.zoo.entries import MODELS, models_in, user_folder

_STAGING, _REPLACED = ".sween-staging", ".sween-replaced"
"""In the user's folder: what is not in place yet or no longer, and old models until their
replacements are in place."""

Outcome = Literal["added", "replaced", "already there"]


def add(
    archive: AnyPath, *, replace: bool = False, archs: Sequence[str] = ()
) -> dict[str, Outcome]:
    """Install all models of an archive for `load`, or none if one of them is refused.

    Args:
        archive: written by `pack`.
        replace: whether a model takes the place of another one installed under its name; one that
            ships with the package is never replaced.
        archs: custom architectures, as `package.module:factory`, that may be imported.

    Returns:
        What was done with each model.

    Raises:
        CheckpointError: the archive was altered, or a model of it does not load.
        BadInput: another model has the name already.
        FolderBusy: another process is installing models.

    Example:
        See `pack`.
    """
    folder = _writable_folder()
    with open_archive(archive) as content, FolderLock(folder):
        _clean(folder)
        staging = folder / _STAGING
        try:
            outcomes: dict[str, Outcome] = {}
            for name in content.models:
                content.extract(name, staging / name)
                fingerprint = check_ensemble(staging / name, archs=archs)
                _check_files(content, name, staging / name)
                outcomes[name] = _decide(folder, content, name, fingerprint, replace)
            for name, outcome in outcomes.items():
                if outcome != "already there":
                    _put_in_place(staging / name, folder / name)
        finally:
            _clean(folder)
    return outcomes


def remove(name: str) -> None:
    """Remove an installed model.

    Raises:
        BadInput: it ships with the package.
        UnknownName: no such model is installed.

    Example:
        See `pack`.
    """
    folder = user_folder()
    installed = list(models_in(folder))
    if name not in installed and name in models_in(MODELS):
        raise BadInput(
            name, expected="an installed model", got="one that ships with sween", fix="keep it"
        )
    if name not in installed:
        raise UnknownName("installed model", name, installed)
    with FolderLock(folder):
        _clean(folder)
        (folder / _STAGING).mkdir()
        (folder / name).rename(folder / _STAGING / name)
        _clean(folder)


def _writable_folder() -> Path:
    folder = user_folder()
    if not folder.is_absolute():  # the home folder is unknown
        raise BadInput("SWEEN_ZOO: expected a folder for models, got no home folder; set SWEEN_ZOO")
    return folder


def _check_files(content: Archive, name: str, folder: Path) -> None:
    """Refuse checkpoints that the ensemble does not use."""
    if unused := content.models[name].keys() - describe_files(folder).keys():
        raise BadInput(
            f"{content.path}: {name}: expected the checkpoints of its members alone, got "
            f"{', '.join(sorted(unused))}; pack it again with `sween zoo pack`"
        )


def _decide(folder: Path, content: Archive, name: str, fingerprint: str, replace: bool) -> Outcome:
    """What to do with a model that was unpacked; refuses one whose name is taken."""
    for place, ships in ((MODELS / name, True), (folder / name, False)):
        if not os.path.lexists(place):
            continue
        try:
            same = check_ensemble(place) == fingerprint
            same_files = describe_files(place) == content.models[name]
        except SweenError:  # damaged, or of a custom architecture that may not be imported
            same = same_files = False
        if same and (ships or same_files or not replace):
            return "already there"
        if replace and not ships:
            return "replaced"
        raise BadInput(
            f"{content.path}: {name}",
            expected="a new name",
            got="the name of another model that ships with sween"
            if ships
            else f"the name of another model, in {place}",
            fix="pack it under another name" if ships else "pass `replace=True` to replace it",
        )
    return "added"


def _put_in_place(new: Path, place: Path) -> None:
    replaced = place.parent / _REPLACED
    if os.path.lexists(place):
        replaced.mkdir(exist_ok=True)
        place.rename(replaced / place.name)
    new.rename(place)


def _clean(folder: Path) -> None:
    """Remove what is not in place; a killed or failed process may have left a model replaced only
    half, which is put back."""
    replaced = folder / _REPLACED
    for old in replaced.iterdir() if replaced.is_dir() else ():
        if not os.path.lexists(folder / old.name):
            old.rename(folder / old.name)
    for leftover in (replaced, folder / _STAGING):
        if leftover.exists():
            shutil.rmtree(leftover)
