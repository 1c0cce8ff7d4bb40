"""Puts the shards of a run together: into the folder that one machine would have written."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput, CheckpointError
from sween.locks import FolderLock
from sween.paths import AnyPath, as_folder, as_paths
from sween.records import read_lines, rows_file
from sween.run_folder import (
    atomic_path,
    config_differences,
    environment_files,
    environment_name,
    read_config,
    same_environment,
    write_json,
)
from sween.runs.attack import AttackConfig, AttackRun
from sween.runs.certification import CertificationConfig, CertificationRun
from sween.runs.pilots import PLAN, PilotRun, PlanRun, is_planned
from sween.runs.rows import RowRun
from sween.runs.shards import Shard, read_shard

KINDS: Mapping[str, type[RowRun[Any, Any]]] = {
    "certificates": CertificationRun,
    "attacks": AttackRun,
}
"""The runs that have shards, by the `kind` of their config."""

SAME_VERSIONS = ("sween", "torch")
"""Of every environment of every shard; on GPUs also the kind of GPU."""


@dataclasses.dataclass(frozen=True)
class MergedRun:
    """What `merge_runs` did.

    Attributes:
        run: the whole run; None if the shards only had their pilot votes, and now have a plan.
        shards: how many there are.
        already: whether `out` held the merged run before.
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
    """
    out = as_folder("out", out)
    parts = _Parts(as_paths("folders", folders))
    parts.refuse_unfinished()
    plan = parts.plan()
    if plan is not None:
        for folder in parts.unplanned:
            plan.write(folder)
        return MergedRun(None, parts.count)
    environments = parts.environments()
    run, lines = parts.together(out)
    already = _write(out, parts.config_text(), environments, run, lines)
    return MergedRun(run, parts.count, already)


def shards_left(folders: Iterable[AnyPath]) -> list[int]:
    """The numbers of the shards that are missing or unfinished.

    Folders that do not exist are shards that have not started; if none does, there are as many
    shards as folders. Shards that have their pilot votes have nothing to do before a merge.
    """
    paths = as_paths("folders", folders)
    if not any(path.exists() for path in paths):
        return list(range(1, len(paths) + 1))
    parts = _Parts(paths)
    return sorted({*parts.missing, *parts.unfinished})


class _Parts:
    """Shards of one run, read and checked; some may be missing or unfinished.

    Attributes:
        count: of the shards.
        folders: of those that are there, by number.
        runs: what each has to finish next: its pilot votes, or its rows.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        found = [(folder, _shard_of(folder)) for folder in folders if folder.exists()]
        if not found:
            raise BadInput(
                "folders",
                expected="the folders of all shards of a run",
                got=", ".join(map(str, folders)) or "none",
                fix="name folders that exist",
            )
        first, shard = found[0]
        self.count, self.folders = shard.count, dict[int, Path]()
        config = read_config(first)
        for folder, own in found:
            _refuse_other_count(first, shard, folder, own)
            differences = config_differences(config, read_config(folder))
            if differences:
                raise CheckpointError(
                    f"{folder} is a shard of another run than {first} ({'; '.join(differences)})",
                    fix="merge shards of one run",
                )
            other = self.folders.setdefault(own.number, folder)
            if other is not folder:
                raise BadInput(
                    f"shard {own}",
                    expected="each shard once",
                    got=f"{other} and {folder}",
                    fix="leave one of them out",
                )
        self.folders = dict(sorted(self.folders.items()))
        self._read(config, first)

    def _read(self, config: Mapping[str, Any], first: Path) -> None:
        kind = KINDS.get(str(config.get("kind")))
        if kind is None:
            raise CheckpointError(
                f"{first / 'config.toml'}: kind",
                expected=" or ".join(KINDS),
                got=repr(config.get("kind")),
                fix="restore the folder from its source",
            )
        self.kind = kind
        self.runs: dict[int, RowRun[Any, Any]] = {}
        self.pilots: dict[int, PilotRun] = {}
        for number, folder in self.folders.items():
            run = kind.read(folder, part=True)
            self.config: CertificationConfig | AttackConfig = run.config
            if self._is_planned(run):
                self.pilots[number] = PilotRun.read(folder, part=True)
                if not is_planned(folder):
                    run = self.pilots[number]
            self.runs[number] = run

    @staticmethod
    def _is_planned(run: RowRun[Any, Any]) -> bool:
        return isinstance(run, CertificationRun) and run.config.settings.strategy.planned

    @property
    def missing(self) -> list[int]:
        """Shards without a folder."""
        return [number for number in range(1, self.count + 1) if number not in self.folders]

    @property
    def unfinished(self) -> dict[int, int]:
        """How many images the shards that are not complete have left."""
        left = {
            number: len({index for index, _ in run.missing}) for number, run in self.runs.items()
        }
        return {number: images for number, images in left.items() if images}

    def refuse_unfinished(self) -> None:
        names = [f"{number}/{self.count}" for number in self.missing]
        found = [f"missing {_listed(names)}"] if names else []
        for number, images in self.unfinished.items():
            what = "pilot votes on " if isinstance(self.runs[number], PilotRun) else ""
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

    @property
    def unplanned(self) -> list[Path]:
        """Folders with pilot votes and without a plan."""
        return [folder for number, folder in self.folders.items() if self._awaits(number)]

    def _awaits(self, number: int) -> bool:
        return self.runs[number] is self.pilots.get(number)

    def plan(self) -> PlanRun | None:
        """The plan for shards that have none yet; None if all have theirs, or need none."""
        if not self.pilots:
            return None
        plan = PlanRun.of([*self.pilots.values()])
        for folder in self.folders.values():
            file = rows_file(folder, PLAN)
            if file is not None and [*read_lines(file)] != plan.lines:
                raise CheckpointError(
                    str(file),
                    expected="the plan of the pilot votes of all shards",
                    got="another one",
                    fix="restore it, or delete it and merge again",
                )
        return plan if self.unplanned else None

    def environments(self) -> list[Mapping[str, Any]]:
        """The different environments of all shards; refuses other versions and kinds of GPU."""
        same = (*SAME_VERSIONS, *(["gpu"] if self.config.content.get("device") == "cuda" else []))
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

    def together(self, out: Path) -> tuple[CertificationRun | AttackRun, list[bytes]]:
        """The whole run, checked, and the text of its rows in the order of one machine."""
        lines = {
            run.key(row): (row, line)
            for run in self.runs.values()
            for row, line in zip(run.rows, read_lines(run.file), strict=False)
        }
        file = out / self.kind.FILE
        ordered = [lines[key] for key in self.kind(file, self.config, ()).row_keys()]
        run = self.kind(file, self.config, [row for row, _ in ordered])
        for place, finding in run.disagreements():
            run.refuse(place, [finding])
        assert isinstance(run, CertificationRun | AttackRun)
        return run, [line for _, line in ordered]

    def config_text(self) -> bytes:
        """The config that all shards have."""
        return (next(iter(self.folders.values())) / "config.toml").read_bytes()


def _shard_of(folder: Path) -> Shard:
    shard = read_shard(folder)
    if shard is None:
        raise CheckpointError(
            str(folder),
            expected="the folder of a shard",
            got="a whole run" if (folder / "config.toml").exists() else "no shard.json in it",
            fix="name folders that were written with `shard`",
        )
    return shard


def _refuse_other_count(first: Path, shard: Shard, folder: Path, own: Shard) -> None:
    if own.count != shard.count:
        raise BadInput(
            str(folder),
            expected=f"one of {shard.count} shards, as {first} is",
            got=own,
            fix="merge shards of one split",
        )


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
    lines: Sequence[bytes],
) -> bool:
    """Write the merged run, config.toml last: without it, a folder is not a run.

    Returns:
        Whether the folder held it before.
    """
    with FolderLock(out):
        known = rows_file(out, run.FILE)
        begun = (out / "config.toml").exists()
        same = known is not None and [*read_lines(known)] == lines
        if begun and same and (out / "config.toml").read_bytes() == config:
            return True
        if begun or (known is not None and not same) or read_shard(out) is not None:
            raise CheckpointError(
                str(out),
                expected="a new folder, or one that these shards were merged into",
                got="another run",
                fix="choose another folder, or delete that folder",
            )
        for number, environment in enumerate(environments):
            write_json(out / environment_name(number), environment)
        with atomic_path(run.file) as temporary:
            temporary.write_bytes(b"".join(lines))
        with atomic_path(out / "config.toml") as temporary:
            temporary.write_bytes(config)
    return False
