"""Pilot votes of shards, and the plan that is made from all of them.

A strategy that plans for all images together needs the pilot votes on all of them before it knows
the number of votes on any. So a shard first writes its pilot votes; `sween.runs.merge` puts those
of all shards together, with the planned sizes, and writes this plan into every shard's folder; the
shards then draw fresh votes by it. Pilot votes are selection votes: the estimation votes have other
noise, so they are independent of the sizes.
"""

import dataclasses
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from sween.errors import RunMismatch
from sween.locks import FolderLock
from sween.paths import AnyPath
from sween.records import rows_file, to_line, to_row
from sween.run_folder import atomic_path
from sween.runs.certification import CertificationConfig
from sween.runs.rows import Finding, RowRun
from sween.runs.shards import read_shard
from sween.sampling.rederive import LOST_VOTES
from sween.sampling.strategy import Plan
from sween.sampling.votes import ImageVotes

PLAN = "plan.jsonl"
"""Compressed in every shard's folder, since each has the pilot votes on all images of the run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PilotVotes:
    """One voter's selection votes on one image; in a plan, `n` is the image's planned size."""

    SCHEMA: ClassVar[int] = 1

    index: int
    label: int | None
    model: str
    selection_counts: tuple[int, ...]
    n0: int
    n: int | None
    member_evaluations: int
    forward_rows: int
    seed: int
    run: str | None = None


class PilotConfig(CertificationConfig):
    """The config of a certification run, as its pilot votes repeat it.

    All pilot votes come from forward passes of one shape, on one machine or on many.
    """

    REPEATED: ClassVar[tuple[str, ...]] = ("n0", "seed", "forward_rows")


class PilotRun(RowRun[PilotConfig, PilotVotes]):
    """The pilot votes of a shard, checked."""

    FILE: ClassVar[str] = "pilots.jsonl"
    PART: ClassVar[str] = "model"
    SIZED: ClassVar[bool] = False
    """Whether every row has the size of its image."""

    @classmethod
    def kinds(cls) -> tuple[type[PilotConfig], type[PilotVotes]]:
        return PilotConfig, PilotVotes

    def counts(self, row: PilotVotes) -> Sequence[int]:
        return row.selection_counts

    def row_problems(self) -> Iterator[list[str]]:
        lost = LOST_VOTES if self.config.noise.startswith("exact") else 0
        for row in self.rows:
            total = sum(row.selection_counts)
            problems = []
            if not row.n0 - lost <= total <= row.n0 or min(row.selection_counts, default=0) < 0:
                problems.append(f"selection_counts sum to {total}, n0 is {row.n0}")
            if (row.n is not None) != self.SIZED:
                problems.append(f"n is {row.n} in {self.FILE}")
            yield problems

    def disagreements(self) -> Iterator[Finding]:
        yield from ()


class PlanRun(PilotRun):
    """The pilot votes on all images of a run, with the sizes that they call for."""

    FILE: ClassVar[str] = PLAN
    SIZED: ClassVar[bool] = True

    @classmethod
    def of(cls, pilots: Sequence[PilotRun]) -> Self:
        """Plan a run from the complete pilot votes of all its shards."""
        config, where = pilots[0].config, pilots[0].file.with_name(f"{PLAN}.gz")
        rows = {run.key(row): row for run in pilots for row in run.rows}
        ordered = cls(where, config, ())
        run = cls(where, config, [rows[key] for key in ordered.row_keys()])
        sizes = run.sizes()
        planned = [dataclasses.replace(row, n=sizes[row.index]) for row in run.rows]
        return cls(where, config, planned)

    def sizes(self) -> dict[int, int]:
        """The number of votes for each image, from the pilot votes on all of them."""
        config, pilots = self.config, self.by_image()
        votes = [pilots[index] for index in config.indices]
        planned = config.settings.strategy.plan(votes, config.settings, config.model)
        return dict(zip(config.indices, planned, strict=True))

    def by_image(self) -> dict[int, dict[str, ImageVotes]]:
        """The votes of every voter, by image."""
        found: dict[int, dict[str, ImageVotes]] = {}
        for row in self.rows:
            votes = ImageVotes(row.selection_counts, row.member_evaluations, row.n0)
            found.setdefault(row.index, {})[row.model] = votes
        return found

    def disagreements(self) -> Iterator[Finding]:
        if not self.missing:
            sizes = self.sizes()
            for place, row in enumerate(self.rows):
                if row.n != sizes[row.index]:
                    yield place, f"n is {row.n}, the pilot votes call for {sizes[row.index]}"

    @property
    def content(self) -> list[dict[str, Any]]:
        """The rows of its file."""
        return [to_row(row) for row in self.rows]

    def write(self, folder: Path) -> None:
        """Write the plan into a shard's folder."""
        with FolderLock(folder), atomic_path(folder / f"{PLAN}.gz") as temporary:
            temporary.write_bytes(gzip.compress(b"".join(map(to_line, self.content)), mtime=0))


def is_planned(folder: AnyPath) -> bool:
    """Whether a shard's folder has a plan."""
    return rows_file(folder, PLAN) is not None


def awaits_plan(folder: AnyPath) -> bool:
    """Whether a folder is that of a shard with pilot votes which no plan was made from yet."""
    pilots = rows_file(folder, PilotRun.FILE)
    return read_shard(folder) is not None and pilots is not None and not is_planned(folder)


def read_plans(folder: AnyPath) -> Mapping[int, Plan] | None:
    """The plan of all images in a shard's folder; None if there is none yet.

    Raises:
        RunMismatch: it is incomplete, or not made from this shard's pilot votes.
    """
    file = rows_file(folder, PLAN)
    if file is None:
        return None
    own = PilotRun.read(folder, part=True)
    plan = PlanRun.read_file(file, own.config, None)
    pilots = {plan.key(row): dataclasses.replace(row, n=None) for row in plan.rows}
    known = {own.key(row): row for row in own.rows}
    if plan.missing or known != {key: pilots[key] for key in own.row_keys()}:
        raise RunMismatch(
            str(file),
            f"it was not made from the pilot votes in {own.file.name}",
            fix=f"delete {file.name} and merge the shards again",
        )
    sizes, votes = {row.index: row.n or 0 for row in plan.rows}, plan.by_image()
    return {index: Plan(sizes[index], votes[index]) for index in plan.indices}
