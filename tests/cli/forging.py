"""Run folders altered by somebody who knows how checksums and tags are made."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sween.bounds.decision import decide, decide_soft
from sween.errors import CheckFailed
from sween.records import Certificate, from_row, row_checksum, to_line
from sween.run_folder import read_config, run_tag, to_toml
from sween.runs import verify_attacks, verify_folder

Row = dict[str, Any]
Change = Callable[[Row], Row]


@dataclasses.dataclass(frozen=True)
class Forgery:
    """A copy of a run; whatever is changed, its checksums and tags fit afterwards."""

    folder: Path
    file: str = "certificates.jsonl"

    @property
    def path(self) -> Path:
        return self.folder / self.file

    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def write(self, rows: Sequence[Row], *, tagged: bool = True) -> None:
        """Rows as sween writes them, with the tag of the config unless they keep their own."""
        tag = {"run": run_tag(read_config(self.folder))} if tagged else {}
        lines = []
        for row in rows:
            own = row | tag
            lines.append(to_line(own | {"checksum": row_checksum(own)}))
        self.path.write_bytes(b"".join(lines))

    def change(self, change: Change, *places: int) -> None:
        """Alter rows at these places, or all."""
        rows = self.rows()
        for place in places or range(len(rows)):
            rows[place] |= change(rows[place])
        self.write(rows)

    def refused(self) -> str:
        """Why the run fails the check."""
        verify = verify_attacks if self.file == "attacks.jsonl" else verify_folder
        with pytest.raises(CheckFailed) as caught:
            verify(self.folder)
        return str(caught.value)

    def configure(self, **changes: Any) -> None:
        """Another config, of which all rows then say to be; None takes a key away."""
        config = read_config(self.folder) | changes
        (self.folder / "config.toml").write_text(to_toml(config))
        self.write(self.rows())


def rederived(row: Row) -> Row:
    """What the row's votes prove, so that nothing in the row itself is wrong."""
    own = from_row(Certificate, row)
    if own.votes == "soft":
        found = decide_soft(
            own.selection_counts,
            own.selection_scores or (),
            own.estimation_scores or (),
            n=own.n,
            alpha=own.alpha,
            sigma=own.sigma,
        )
    else:
        found = decide(
            own.selection_counts,
            own.estimation_counts,
            alpha=own.alpha,
            sigma=own.sigma,
            bound=own.bound,
        )
    return row | dataclasses.asdict(found)


def all_votes_for(label: int, row: Row) -> Row:
    """Made-up votes without a doubt, and all that follows from them."""
    counts = [0] * len(row["selection_counts"])
    selection, estimation = list(counts), list(counts)
    selection[label], estimation[label] = row["n0"], row["n"]
    return rederived(row | {"selection_counts": selection, "estimation_counts": estimation})


def moved(counts: list[int], source: int, to: int, votes: int = 1) -> list[int]:
    """Votes for one class given to another."""
    changed = list(counts)
    changed[source] -= votes
    changed[to] += votes
    return changed
