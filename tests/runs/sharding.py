"""Shards of small runs, and what a merged folder must be."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sween.ensemble.early_exit import read_exit
from sween.records import CERTIFICATES
from sween.runs import CertificationRun, Shard, merge_runs
from sween.sampling import CertifySettings
from tests.certifying import certify_digits
from tests.cli.rows import rows_of


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to certify the first digits."""

    settings: CertifySettings
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    images: int = 11

    def certify(self, out: Path, shard: Shard | None = None) -> CertificationRun:
        return certify_digits(out, self.settings, self.images, shard=shard, **self.options)

    def shards(self, base: Path, count: int) -> list[Path]:
        """The folders of all shards, once each command has run."""
        for shard in all_shards(count):
            self.certify(base / str(shard.number), shard)
        return [base / str(shard.number) for shard in all_shards(count)]

    def finished_shards(self, base: Path, count: int) -> list[Path]:
        """The folders of all shards, complete."""
        folders = self.shards(base, count)
        if self.settings.strategy.planned:
            assert merge_runs(folders, base / "merged").run is None
            assert not (base / "merged").exists()
            self.shards(base, count)
        return folders


def all_shards(count: int) -> Iterator[Shard]:
    return (Shard(number, count) for number in range(1, count + 1))


EXITS = {"exit": read_exit("paper"), "other_exits": [read_exit("exact")]}
FIXED = Mode(CertifySettings(n=200), EXITS | {"members": True})
BUDGET = Mode(CertifySettings(n=1_000, n0=100, sampling="budget", budget=8_000))
MODES = {
    "fixed": FIXED,
    "decide": Mode(CertifySettings(n=1_000, sampling="decide", radii=(0.3, 0.6))),
    "tolerance": Mode(CertifySettings(n=1_000, n0=100, sampling="tolerance", tolerance=0.2)),
    "budget": BUDGET,
    "soft": Mode(CertifySettings(n=200, votes="soft")),
}


def assert_same_run(merged: Path, whole: Path, file: str = CERTIFICATES) -> None:
    """Both folders have the same files, with the same content but for the times."""
    assert sorted(path.name for path in merged.iterdir()) == sorted(
        path.name for path in whole.iterdir()
    )
    assert (merged / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()
    assert rows_of(merged, file) == rows_of(whole, file)
    environments = [
        json.loads((folder / "environment.json").read_text()) | {"date": ""}
        for folder in (merged, whole)
    ]
    assert environments[0] == environments[1]
