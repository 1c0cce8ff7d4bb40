"""Shards: parts of one run that several machines compute, each into a folder of its own.

A shard's folder has the config of the whole run, and so its tag, next to a small file that says
which part it is. `sween.runs.merge` puts the parts together.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from sween.errors import BadInput, CheckpointError
from sween.paths import AnyPath
from sween.run_folder import write_json

SHARD = "shard.json"

Item = TypeVar("Item")

_FORM = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of `count` parts of a run, numbered from 1.

    Example:
        >>> from sween.runs import Shard
        >>> shard = Shard.parse("2/3")
        >>> shard.take(range(10))
        [1, 4, 7]
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        whole = type(self.number) is type(self.count) is int
        if not whole or not 1 <= self.number <= self.count:
            raise _refusal(f"{self.number}/{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The shard that a text such as `3/16` names."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise _refusal(text)
        return cls(int(found[1]), int(found[2]))

    def take(self, items: Sequence[Item], what: str = "images") -> list[Item]:
        """Every `count`-th item, from this shard's own on.

        Images are often ordered by class, and hard ones come together: interleaved parts take about
        equally long. More shards than items are refused, since some would be empty.
        """
        if self.count > len(items):
            raise BadInput(
                "shard",
                expected=f"at most {len(items)} shards, since there are {len(items)} {what}",
                got=self,
                fix="split it into fewer",
            )
        return list(items[self.number - 1 :: self.count])


def _refusal(got: object) -> BadInput:
    return BadInput(
        "shard",
        expected="NUMBER/COUNT, numbered from 1",
        got=repr(got),
        fix="the third of 16 is 3/16",
    )


def read_shard(folder: AnyPath) -> Shard | None:
    """Which shard a folder is of; None for the folder of a whole run, or of none."""
    path = Path(folder) / SHARD
    if not path.is_file():
        return None
    try:
        return Shard(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:  # of JSON, its keys, or Shard
        raise CheckpointError(
            str(path),
            expected="number and count of a shard",
            got=error,
            fix="restore the folder from its source",
        ) from None


@contextlib.contextmanager
def writing_shard(folder: Path, shard: Shard | None) -> Iterator[None]:
    """Mark a locked folder as that of a shard before a block writes a run there.

    A folder of another shard, or of a whole run, is refused. The mark is written before the config,
    so that no run of a part can be taken for a whole one; a block that leaves no config behind
    leaves no mark either.
    """
    found, config = read_shard(folder), folder / "config.toml"
    if found != shard and (found is not None or config.exists()):
        wanted = "a whole run" if shard is None else f"shard {shard}"
        raise CheckpointError(
            str(folder),
            expected=f"{wanted}, as in this command",
            got="a whole run" if found is None else f"shard {found}",
            fix="choose another folder, or delete that folder",
        )
    if shard is None or found is not None:
        yield
        return
    write_json(folder / SHARD, dataclasses.asdict(shard))
    try:
        yield
    except Exception:
        if not config.exists():
            (folder / SHARD).unlink(missing_ok=True)
        raise
