"""Self-contained ensemble folders: checkpoints of the members, weights and how they were solved."""

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sween.data.dataset import Dataset
from sween.ensemble.loaded import LoadedEnsemble
from sween.ensemble.solve import METHODS, WeightSolution, solve_weights
from sween.ensemble.weighted import WeightedEnsemble, check_weights
from sween.errors import BadInput, CheckpointError
from sween.factories import check_consent
from sween.locks import FolderLock, is_hidden_entry
from sween.models import Manifest, load_checkpoint, read_manifest
from sween.paths import AnyPath, as_paths
from sween.run_folder import (
    describe_environment,
    member_file,
    read_config,
    to_toml,
    write_json,
    write_text,
)

_BUILDING, _READY, _OLD = ".sween-building", ".sween-ready", ".sween-old"
"""Where a new ensemble is written; its name once it is complete; inside that, the old parts that it
replaces."""

_REPLACED, _REMOVED = ("members", "environment.json"), "measured.json"
"""Parts of an ensemble other than its config; measurements of the old ensemble, which do not apply
to the new one."""


def load_members(runs: Sequence[AnyPath], *, archs: Sequence[str] = ()) -> LoadedEnsemble:
    """An equally weighted ensemble of the checkpoints of several compatible runs.

    Args:
        runs: run folders or checkpoint files.
        archs: custom architectures, as `package.module:factory`, that may be imported.

    Example:
        >>> from sween.ensemble import load_members
        >>> from sween.zoo import MODELS
        >>> folder = MODELS / "digits-sween3-gaussian-sigma0.50" / "members"
        >>> files = [folder / "digits-mlp.safetensors", folder / "digits-conv.safetensors"]
        >>> ensemble = load_members(files)
        >>> ensemble.name, ensemble.weights.tolist()
        ('SWEEN-2', [0.5, 0.5])
    """
    archs = (archs,) if isinstance(archs, str) else archs  # `in` would look for a part of it
    runs = as_paths("runs", runs)
    if not runs:
        raise BadInput("runs", expected="at least one run folder", got="none", fix="pass one")
    members, manifests = [], []
    for run in runs:
        arch = read_manifest(run).arch
        trusted = arch if arch in archs else None
        check_consent(arch, given=trusted, where=str(run), kind="arch", several=True,
                      error=CheckpointError)  # fmt: skip
        model, manifest = load_checkpoint(run, arch=trusted)
        members.append(model)
        manifests.append(manifest)
    for run, manifest in zip(runs[1:], manifests[1:], strict=True):
        for field in ("dataset", "num_classes", "class_names", "image_shape", "sigma"):
            wanted, found = getattr(manifests[0], field), getattr(manifest, field)
            if wanted != found:
                raise CheckpointError(
                    f"{run}: {field}: expected {wanted}, as {runs[0]} has, got {found}; combine "
                    "only members trained on the same data with the same sigma"
                )
    return LoadedEnsemble(members, manifests, _names(manifests)).eval()


def _names(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    """Architecture names, with the seed or a number to tell repeated architectures apart."""
    names: list[str] = []
    for manifest in manifests:
        base = manifest.arch.rpartition(":")[2]
        if sum(other.arch == manifest.arch for other in manifests) > 1:
            base = f"{base}-seed{manifest.seed}"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return tuple(names)


def check_dataset(loaded: LoadedEnsemble, dataset: Dataset) -> None:
    """Refuse a data set that is not the members' own, or has no training images."""
    if dataset.name != loaded.dataset:
        raise BadInput(
            "dataset", expected=loaded.dataset, got=dataset.name, fix="use the members' data set"
        )
    if dataset.class_names != loaded.class_names:
        raise BadInput(
            f"classes: expected {loaded.class_names}, as the members have, got "
            f"{dataset.class_names}; load the data set that the members were trained on"
        )
    if dataset.image_shape != loaded.image_shape:
        raise BadInput(
            f"image shape: expected {loaded.image_shape}, got {dataset.image_shape}; load the "
            "images at the members' size"
        )
    dataset.check_trainable()


def weigh(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    *,
    method: str = METHODS[0],
    samples: int = 100,
    seed: int = 0,
    quiet: bool = False,
    evaluated: WeightedEnsemble | None = None,
) -> WeightSolution:
    """Solve the weights of a loaded ensemble on the data set's weight-solving split.

    Args:
        loaded: whose weights are set.
        dataset: that of its members.
        method: see `solve_weights`.
        samples: noise draws per image.
        seed: of all noise.
        quiet: no progress display.
        evaluated: the same members in another form that is evaluated instead, such as
            that of `sween.engine.prepared_ensemble`.

    Example:
        >>> import sween
        >>> from sween.ensemble import weigh
        >>> digits = sween.load_dataset("digits")
        >>> loaded = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> solution = weigh(loaded, digits, method="convex", samples=5, quiet=True)
        >>> solution.gap < 1e-4, loaded.weights.tolist() == list(solution.weights)
        (True, True)
    """
    check_dataset(loaded, dataset)
    solution = solve_weights(
        loaded if evaluated is None else evaluated,
        dataset.weights.held_in_memory(),
        dataset.weights.labels,
        sigma=loaded.sigma,
        method=method,
        samples=samples,
        seed=seed,
        quiet=quiet,
    )
    loaded.weights = solution.weights
    return solution


def save_ensemble(
    loaded: LoadedEnsemble, runs: Sequence[AnyPath], solution: WeightSolution, out: AnyPath
) -> None:
    """Write the complete ensemble, then move it into place; see `new_ensemble`.

    Example:
        >>> import sween
        >>> from sween.ensemble import load_members, save_ensemble, weigh
        >>> from sween.zoo import MODELS
        >>> folder = MODELS / "digits-sween3-gaussian-sigma0.50" / "members"
        >>> files = [folder / "digits-mlp.safetensors", folder / "digits-conv.safetensors"]
        >>> loaded = load_members(files)
        >>> digits = sween.load_dataset("digits")
        >>> solution = weigh(loaded, digits, method="uniform", samples=5, quiet=True)
        >>> save_ensemble(loaded, files, solution, "ensemble")
        >>> sween.load("ensemble").member_names
        ('digits-mlp', 'digits-conv')
    """
    with new_ensemble(out) as building:
        write_ensemble(loaded, as_paths("runs", runs), solution, building)


@contextlib.contextmanager
def new_ensemble(out: AnyPath) -> Iterator[Path]:
    """A folder to write an ensemble into, which is moved into `out` when the block succeeds.

    Obstacles are found before the block: `out` holds something other than an ensemble, is not
    writable, or is locked by another writer. An existing ensemble is kept until the new one is
    complete; then its config.toml, environment.json, measured.json and members/ are replaced. Other
    files in the folder are left alone.

    A killed process leaves the old ensemble, the new one or, if it was replacing one by the other,
    a folder that does not load until the next `new_ensemble` there completes the replacement.
    """
    out = Path(out)
    check_place(out)
    with FolderLock(out):
        check_place(out)
        if not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))
        _put_in_place(out)
        building = out / _BUILDING
        for leftover in (building, out / _READY):
            if leftover.exists():
                shutil.rmtree(leftover)
        try:
            (building / "members").mkdir(parents=True)
            yield building
            building.rename(out / _READY)
            try:
                _put_in_place(out)
            except BaseException:
                _take_back(out)
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _put_in_place(out: Path) -> None:
    """Replace the parts of the old ensemble by those of the new one, if there is a complete one.

    Steps that are already done are skipped, so the next process resumes where a killed one stopped.
    The config is moved last, which makes the new ensemble valid.
    """
    ready, old = out / _READY, out / _READY / _OLD
    if (ready / "config.toml").exists():
        old.mkdir(exist_ok=True)
        for name in _REPLACED:
            if (ready / name).exists():
                _move(out / name, old / name)
                (ready / name).rename(out / name)
        _move(out / _REMOVED, old / _REMOVED)
        (ready / "config.toml").rename(out / "config.toml")
    shutil.rmtree(ready, ignore_errors=True)


def _take_back(out: Path) -> None:
    """Undo `_put_in_place`, unless it has completed."""
    ready, old = out / _READY, out / _READY / _OLD
    if (ready / "config.toml").exists():
        for name in _REPLACED:
            if not (ready / name).exists():
                (out / name).rename(ready / name)
            _move(old / name, out / name)
        _move(old / _REMOVED, out / _REMOVED)
        ready.rename(out / _BUILDING)


def _move(source: Path, target: Path) -> None:
    if os.path.lexists(source):
        source.rename(target)


def write_ensemble(
    loaded: LoadedEnsemble, runs: Sequence[Path], solution: WeightSolution, building: Path
) -> None:
    """Write the members' checkpoints and the config into a folder of `new_ensemble`.

    Keys of config.toml:
        kind (text): `ensemble`.
        dataset (text): name of the members' data set.
        sigma (number): noise level of the members, in units of pixels scaled to [0,1].
        members (list of text): names of the members, which are also their files in members/.
        fingerprints (list of text): SHA-256 of each member's checkpoint.
        borrows (text, optional): neighbouring folder that has those members which are not in
            members/; of models that ship with sween.
    """
    for run, member in zip(runs, loaded.member_names, strict=True):
        source = run / "model.safetensors" if run.is_dir() else run
        target = building / "members" / f"{member}.safetensors"
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            if error.errno == errno.ENOSPC:  # names the source
                error.filename, error.filename2 = str(target), None
            raise
    write_config(loaded, loaded.manifests, dataclasses.asdict(solution), building)


def write_config(
    loaded: LoadedEnsemble,
    manifests: Sequence[Manifest],
    solution: Mapping[str, Any],
    building: Path,
) -> None:
    """Write config.toml and environment.json into a folder of `new_ensemble`.

    Args:
        loaded: the ensemble.
        manifests: of the checkpoints in the folder.
        solution: the weights, and how they were solved.
        building: the folder.
    """
    config = {
        "kind": "ensemble",
        "dataset": loaded.dataset,
        "sigma": loaded.sigma,
        "members": list(loaded.member_names),
        "fingerprints": [manifest.fingerprint for manifest in manifests],
        **solution,
    }
    write_json(building / "environment.json", describe_environment())
    write_text(building / "config.toml", to_toml(config))


def check_place(out: AnyPath) -> None:
    """Refuse a folder that is neither empty nor an ensemble, which may be replaced."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise BadInput(str(out), expected="a folder", got="a file", fix="choose another folder")
    # The complete new ensemble first: its config may be moved into the folder at any moment.
    if out.is_dir() and not _is_ensemble(out / _READY) and not _is_ensemble(out):
        found = sorted(name for name in os.listdir(out) if not is_hidden_entry(name))
        if not found:
            return
        raise BadInput(
            f"{out}: expected a new or ensemble folder, got other files, such as {found[0]}; "
            "choose another folder"
        )


def _is_ensemble(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and read_config(folder).get("kind") == "ensemble"


def load_ensemble(path: AnyPath, *, archs: Sequence[str] = ()) -> LoadedEnsemble:
    """Load an ensemble folder, a run folder or a single checkpoint file.

    Example:
        >>> from sween.ensemble import load_ensemble
        >>> from sween.zoo import MODELS
        >>> ensemble = load_ensemble(MODELS / "digits-sween3-gaussian-sigma0.50")
        >>> ensemble.name, len(ensemble.weights)
        ('SWEEN-3', 3)
    """
    path = Path(path)
    if (path / _READY / "config.toml").is_file():
        raise CheckpointError(
            f"{path}: expected a complete ensemble, got one that `sween weigh` has not finished "
            "replacing; wait for it; if it was killed, run `sween weigh` into that folder again"
        )
    if path.is_file() or not (path / "config.toml").is_file() or not _is_ensemble(path):
        if path.is_dir() and not (path / "model.safetensors").is_file():
            raise CheckpointError(
                f"{path}: expected an ensemble folder or a run folder with model.safetensors, got "
                "neither; pass a folder written by `sween weigh` or `sween train`"
            )
        return load_members([path], archs=archs)
    names, fingerprints, weights = _read_ensemble_config(path)
    loaded = load_members([_existing_member(path, name) for name in names], archs=archs)
    for name, wanted, manifest in zip(names, fingerprints, loaded.manifests, strict=True):
        if manifest.fingerprint != wanted:
            raise CheckpointError(
                f"{path}: member {name}: expected fingerprint {wanted[:16]}, got "
                f"{manifest.fingerprint[:16]}; the checkpoint was replaced; run `sween weigh` again"
            )
    loaded.weights, loaded.member_names = weights, names
    known = read_config(path)
    for what, of_members in (("sigma", loaded.sigma), ("dataset", loaded.dataset)):
        if known.get(what, of_members) != of_members:
            raise CheckpointError(
                f"{path}/config.toml: {what}",
                expected=f"{of_members}, as its members have",
                got=repr(known[what]),
                fix="run `sween weigh` again",
            )
    return loaded


def _existing_member(folder: Path, name: str) -> Path:
    file = member_file(folder, name)
    if not file.is_file():
        place = "members/" if file.parent.parent == folder else f"members/ or {file.parent}"
        raise CheckpointError(
            f"{folder}: member {name}: expected its checkpoint in {place}, got none; copy the "
            "whole ensemble, for example with `sween zoo pack`"
        )
    return file


def load_weightings(
    loaded: LoadedEnsemble, folders: Sequence[AnyPath], *, archs: Sequence[str] = ()
) -> dict[str, tuple[float, ...]]:
    """The weights of other ensembles of the same members, by folder name.

    Example:
        >>> import sween
        >>> from sween.ensemble import load_weightings
        >>> from sween.zoo import MODELS
        >>> name = "digits-sween3-gaussian-sigma0.50"
        >>> list(load_weightings(sween.load(name), [MODELS / name]))
        ['digits-sween3-gaussian-sigma0.50']
    """
    folders = as_paths("folders", folders)
    weightings: dict[str, tuple[float, ...]] = {}
    for folder in folders:
        other = load_ensemble(folder, archs=archs)
        members, wanted = (
            {manifest.fingerprint: position for position, manifest in enumerate(each.manifests)}
            for each in (other, loaded)
        )
        if members.keys() != wanted.keys():
            raise CheckpointError(
                str(folder),
                expected=f"weights of the same members: {', '.join(loaded.member_names)}",
                got=f"other checkpoints: {', '.join(other.member_names)}",
                fix="weigh the same runs",
            )
        name = folder.resolve().name
        if name in {*weightings, *loaded.member_names, loaded.name}:
            raise BadInput(
                f"{folder}: expected a folder name that differs from all other models of the run, "
                f"got {name}; rename the folder"
            )
        weights = other.weights.tolist()
        weightings[name] = tuple(weights[members[fingerprint]] for fingerprint in wanted)
    return weightings


def _read_ensemble_config(
    path: Path,
) -> tuple[tuple[str, ...], tuple[str, ...], torch.Tensor]:
    """Names, fingerprints and weights of the members, equally many of each."""
    config = read_config(path)
    try:
        names, fingerprints = (
            tuple(Path(str(name)).name for name in config[key])
            for key in ("members", "fingerprints")
        )
        weights = check_weights(config["weights"], len(names))
        if len(set(names)) != len(names) or len(fingerprints) != len(names):
            raise ValueError(f"members {names}, {len(fingerprints)} fingerprints")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}/config.toml",
            expected="members with a fingerprint and a weight each",
            got=f"no {error}" if isinstance(error, KeyError) else error,
            fix="write the ensemble again with `sween weigh`",
        ) from None
    return names, fingerprints, weights
