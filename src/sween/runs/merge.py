"""Puts the shards of a run together: into the folder that one machine would have written."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput, CheckpointError
from sween.locks import FolderLock
from sween.paths import AnyPath, as_folder, as_paths
from sween.records import read_rows, rows_file, to_line, to_row
from sween.run_folder import (
    atomic_path,
    config_differences,
    environment_files,
    environment_name,
    read_config,
    same_environment,
    write_json,
)
from sween.runs.attack import AttackRun
from sween.runs.certification import CertificationRun
from sween.runs.pilots import PLAN, PilotRun, PlanRun, is_planned
from sween.runs.rows import RowRun
from sween.runs.shards import Shard, read_shard

KINDS: Mapping[str, type[RowRun[Any, Any]]] = {
    run.kinds()[0].KIND: run for run in (CertificationRun, AttackRun)
}
"""The runs that have shards, by the `kind` of their config."""


@dataclasses.dataclass(frozen=True)
class MergedRun:
    """What `merge_runs` did.

    Attributes:
        run: the whole run; None if the shards only have their pilot votes, and a plan.
        shards: how many there are.
        already: whether the merged run, or the plan, was there before.

    Example:
        See `merge_runs`.
    """

    run: CertificationRun | AttackRun | None
    shards: int
    already: bool = False


def merge_runs(folders: Iterable[AnyPath], out: AnyPath) -> MergedRun:
    """Put all shards of a run together into `out`.

    Config, rows and their order are those of one machine, byte for byte but for the times; the
    environments of all shards are kept. If the sampling plans for all images together and the
    shards have only their pilot votes so far, the plan is written into their folders instead: run
    the shards again, then merge again. A merge that was interrupted can be repeated.

    Args:
        folders: of the shards, in any order.
        out: folder of the whole run, new or already merged from these shards.

    Raises:
        BadInput: the folders are not all shards of one run, each once and complete, written by the
            same versions; nothing is written then.

    Example:
        >>> import sween
        >>> from sween.runs import Shard, merge_runs
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> for number in (1, 2):
        ...     part = sween.certify_dataset(
        ...         smoothed, digits, out=f"part{number}", indices=range(4), n=200,
        ...         shard=Shard(number, 2), quiet=True,
        ...     )
        >>> merged = merge_runs(["part1", "part2"], "run")
        >>> merged.run
        CertificationRun('run', model='SWEEN-3', 4 of 4 images)
    """
    out = as_folder("out", out)
    parts = _Parts(as_paths("folders", folders))
    environments = parts.environments()
    plan = parts.plan()
    if plan is not None and (parts.unplanned or not any(run.rows for run in parts.runs.values())):
        for folder in parts.unplanned:
            plan.write(folder)
        return MergedRun(None, parts.count, already=not parts.unplanned)
    parts.refuse_unfinished()
    run = parts.together(out)
    already = _write(out, parts.config_text(), environments, run)
    return MergedRun(run, parts.count, already)


def shards_left(folders: Iterable[AnyPath]) -> list[int]:
    """The numbers of the shards that are missing or unfinished.

    Folders that hold no run yet are shards that have not started; if none does, there are as many
    shards as folders. Shards that have their pilot votes have nothing to do before a merge.

    Example:
        >>> import sween
        >>> from sween.runs import Shard, shards_left
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> part = sween.certify_dataset(
        ...     smoothed, digits, out="part1", indices=range(4), n=200,
        ...     shard=Shard(1, 2), quiet=True,
        ... )
        >>> shards_left(["part1", "part2"])
        [2]
    """
    paths = as_paths("folders", folders)
    if not any(map(_is_begun, paths)):
        return list(range(1, len(paths) + 1))
    parts = _Parts(paths)
    return sorted({*parts.missing, *parts.unfinished})


def _is_begun(folder: Path) -> bool:
    """Whether a folder holds a run; its config is what a shard writes before its first row."""
    return (folder / "config.toml").exists()


class _Parts:
    """Shards of one run, read and checked; some may be missing or unfinished.

    Attributes:
        count: of the shards.
        folders: of those that have started, by number.
        config: of the whole run.
        runs: the rows of each shard.
        pilots: its pilot votes, if the sampling plans for all images together.
        unplanned: the folders that then lack a plan.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        found = [(folder, _shard_of(folder)) for folder in folders if _is_begun(folder)]
        if not found:
            raise BadInput(
                "folders",
                expected="the folders of all shards of a run",
                got=", ".join(map(str, folders)) or "none",
                fix="name folders that were written with `shard`",
            )
        self.count = found[0][1].count
        self.folders = _by_number(found)
        self._kind = _kind_of(found[0][0])
        self.runs = {n: self._kind.read(at, part=True) for n, at in self.folders.items()}
        self.config = next(iter(self.runs.values())).config
        self.pilots: dict[int, PilotRun] = {}
        self.unplanned: list[Path] = []
        if self.config.planned:
            self.pilots = {n: PilotRun.read(at, part=True) for n, at in self.folders.items()}
            self.unplanned = [at for at in self.folders.values() if not is_planned(at)]
        self._piloting = bool(self.unplanned) or any(run.missing for run in self.pilots.values())

    @property
    def missing(self) -> list[int]:
        """Shards without a folder."""
        return [number for number in range(1, self.count + 1) if number not in self.folders]

    @property
    def unfinished(self) -> dict[int, int]:
        """How many images have no rows in shards that are not complete.

        The rows are pilot votes until all shards have them and a plan.
        """
        runs: Mapping[int, RowRun[Any, Any]] = self.pilots if self._piloting else self.runs
        left = {number: len({index for index, _ in run.missing}) for number, run in runs.items()}
        return {number: images for number, images in left.items() if images}

    def refuse_unfinished(self) -> None:
        names = [f"{number}/{self.count}" for number in self.missing]
        found = [f"missing {_listed(names)}"] if names else []
        for number, images in self.unfinished.items():
            what = "pilot votes on " if self._piloting else ""
            found.append(
                f"{number}/{self.count} unfinished ({what}{images} of "
                f"{len(self.runs[number].indices)} images left in {self.folders[number]})"
            )
        if found:
            raise BadInput(
                "shards",
                expected=f"all {self.count}, complete",
                got=", ".join(found),
                fix=f"run the same `sween {self.config.VERB}` with those shards to finish",
            )

    def plan(self) -> PlanRun | None:
        """The plan, if the shards need one and have all pilot votes; refuses any other plan."""
        if not self.pilots or self.missing or any(run.missing for run in self.pilots.values()):
            return None
        plan = PlanRun.of([*self.pilots.values()])
        for folder in self.folders.values():
            file = rows_file(folder, PLAN)
            if file is not None and read_rows(file) != plan.content:
                raise CheckpointError(
                    str(file),
                    expected="the plan of the pilot votes of all shards",
                    got="another one",
                    fix="restore it, or delete it and merge again",
                )
        return plan

    def environments(self) -> list[Mapping[str, Any]]:
        """The different environments of all shards; refuses other versions and kinds of GPU."""
        on_gpu = self.config.content.get("device") == "cuda"
        same = ("sween", "torch", "gpu") if on_gpu else ("sween", "torch")
        found = list[tuple[Path, Mapping[str, Any]]]()
        for folder in self.folders.values():
            for file in environment_files(folder) or [folder / environment_name(0)]:
                environment = _read_environment(file)
                known, first = found[0] if found else (file, environment)
                for name in same:
                    if environment.get(name) != first.get(name):
                        raise BadInput(
                            f"{file}: {name}",
                            expected=f"{first.get(name)}, as in {known}",
                            got=environment.get(name),
                            fix="run that shard again into a new folder, on a machine like the "
                            "others'",
                        )
                if not any(same_environment(environment, other) for _, other in found):
                    found.append((file, environment))
        return [environment for _, environment in found]

    def together(self, out: Path) -> CertificationRun | AttackRun:
        """The whole run, checked, in the order of one machine."""
        rows = {run.key(row): row for run in self.runs.values() for row in run.rows}
        file = out / self._kind.FILE
        keys = self._kind(file, self.config, ()).row_keys()
        run = self._kind(file, self.config, [rows[key] for key in keys])
        for place, finding in run.disagreements():
            run.refuse(place, [finding])
        assert isinstance(run, CertificationRun | AttackRun)
        return run

    def config_text(self) -> bytes:
        """The config that all shards have."""
        return (next(iter(self.folders.values())) / "config.toml").read_bytes()


def _shard_of(folder: Path) -> Shard:
    shard = read_shard(folder)
    if shard is None:
        raise CheckpointError(
            str(folder),
            expected="the folder of a shard",
            got="a whole run",
            fix="name folders that were written with `shard`",
        )
    return shard


def _by_number(found: Sequence[tuple[Path, Shard]]) -> dict[int, Path]:
    """The folders of different shards of one run, by number."""
    (first, shard), folders = found[0], dict[int, Path]()
    config = read_config(first)
    for folder, own in found:
        if own.count != shard.count:
            raise BadInput(
                str(folder),
                expected=f"one of {shard.count} shards, as {first} is",
                got=f"shard {own}",
                fix="merge shards of one split",
            )
        differences = config_differences(config, read_config(folder))
        if differences:
            raise CheckpointError(
                f"{folder} is a shard of another run than {first} ({'; '.join(differences)})",
                fix="merge shards of one run",
            )
        if own.number in folders:
            raise BadInput(
                f"shard {own}",
                expected="each shard once",
                got=f"{folders[own.number]} and {folder}",
                fix="leave one of them out",
            )
        folders[own.number] = folder
    return dict(sorted(folders.items()))


def _kind_of(folder: Path) -> type[RowRun[Any, Any]]:
    kind = str(read_config(folder).get("kind"))
    if kind not in KINDS:
        raise CheckpointError(
            f"{folder / 'config.toml'}: kind",
            expected=" or ".join(KINDS),
            got=kind,
            fix="restore the folder from its source",
        )
    return KINDS[kind]


def _read_environment(file: Path) -> dict[str, Any]:
    try:
        environment = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(environment, dict):
            return environment
        problem: object = "no JSON object"
    except (OSError, ValueError) as error:
        problem = error
    raise CheckpointError(
        str(file), expected="versions and hardware", got=problem, fix="restore the file"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _write(
    out: Path,
    config: bytes,
    environments: Sequence[Mapping[str, Any]],
    run: RowRun[Any, Any],
) -> bool:
    """Write the merged run, config.toml last: without it, a folder is not a run.

    Returns:
        Whether the folder held it before.
    """
    text = b"".join(to_line(to_row(row)) for row in run.rows)
    config_file = out / "config.toml"
    with FolderLock(out):
        known = rows_file(out, run.FILE)
        same = known == run.file and known.read_bytes() == text
        if same and config_file.exists() and config_file.read_bytes() == config:
            return True
        # Rows without a config are those of an interrupted merge.
        if config_file.exists() or (known and not same) or read_shard(out) is not None:
            raise CheckpointError(
                str(out),
                expected="a new folder, or one that these shards were merged into",
                got="another run",
                fix="choose another folder, or delete that folder",
            )
        for number, environment in enumerate(environments):
            write_json(out / environment_name(number), environment)
        for file, content in ((run.file, text), (config_file, config)):
            with atomic_path(file) as temporary:
                temporary.write_bytes(content)
    return False
