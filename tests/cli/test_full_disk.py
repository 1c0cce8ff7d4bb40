"""A full disk: one line, no part of a row or file, and the same command goes on afterwards."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Outcome, listing, run_line, succeed
from tests.cli.conftest import Made
from tests.cli.mounting import mounted
from tests.cli.rows import rows_of

CERTIFY = "certify {ensemble} --indices 0:40 --n 200 --quiet --out {out}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted(disk, ["-t", "tmpfs", "-o", "size=64k", "tmpfs"]):
        yield disk


def fill(disk: Path, kibibytes: int) -> Path:
    filler = disk / "filler"
    filler.write_bytes(b"\0" * (1024 * kibibytes))
    return filler


def assert_full(outcome: Outcome, file: str, why: str, fix: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("sween: error: ")
    assert outcome.stderr.count("\n") == 1
    for part in (file, why, fix):
        assert part in outcome.stderr


def assert_goes_on(line: str, made: Made, out: Path, tmp_path: Path) -> None:
    """The same command ends well, and the rows are those of a run that nothing stopped."""
    begun = rows_of(out)
    assert 0 < len(begun) < 40
    succeed(line)
    succeed(CERTIFY.format(ensemble=made.ensemble, out=tmp_path / "whole"))
    assert rows_of(out) == rows_of(tmp_path / "whole")
    assert rows_of(out)[: len(begun)] == begun
    assert succeed(f"verify {out}").startswith("40 rows")


def test_certify_on_a_disk_that_fills(small_disk: Path, made: Made, tmp_path: Path) -> None:
    line = CERTIFY.format(ensemble=made.ensemble, out=small_disk / "out")
    filler = fill(small_disk, 44)
    assert_full(run_line(line), "certificates.jsonl", "No space left", "free some space")
    filler.unlink()
    assert_goes_on(line, made, small_disk / "out", tmp_path)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size`: the write that would is cut short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [10_000, 10_001, 12_345])
def test_a_write_cut_short_leaves_no_part_of_a_row(size: int, made: Made, tmp_path: Path) -> None:
    line = CERTIFY.format(ensemble=made.ensemble, out=tmp_path / "out")
    with file_size_limit(size):
        outcome = run_line(line)
    assert_full(outcome, "certificates.jsonl", "File too large", "check the path and the disk")
    assert_goes_on(line, made, tmp_path / "out", tmp_path)


def test_a_disk_that_is_full_from_the_start(small_disk: Path, made: Made) -> None:
    line = CERTIFY.format(ensemble=made.ensemble, out=small_disk / "deep" / "out")
    filler = fill(small_disk, 64)
    before = listing(small_disk)
    assert_full(run_line(line), "environment.json", "No space left", "free some space")
    assert listing(small_disk) == before
    filler.unlink()
    succeed(line)
    succeed(f"verify {small_disk}/deep/out")


TOO_LARGE = {
    "train --dataset digits --arch digits-mlp --sigma 0.5 --epochs 1 --quiet --out {out}": (
        ("state.safetensors", {"config.toml", "environment.json", "metrics.jsonl"})
    ),
    "weigh {runs} --method uniform --samples 1 --quiet --out {out}": (".safetensors", set()),
}


@pytest.mark.parametrize("line", TOO_LARGE)
def test_a_disk_too_small_for_the_networks(line: str, small_disk: Path, made: Made) -> None:
    file, left = TOO_LARGE[line]
    assert_full(run_line(made.fill(line, small_disk)), file, "No space left", "free some space")
    assert {path.name for path in small_disk.rglob("*")} - {"out"} == left


def test_report_into_a_disk_too_small_for_its_figures(small_disk: Path, made: Made) -> None:
    fill(small_disk, 60)
    outcome = run_line(f"report {made.certificates} --out {small_disk}/report")
    assert_full(outcome, "report", "No space left", "free some space")
    assert not [path for path in (small_disk / "report").rglob("*") if path.name[0] == "."]
    assert not (small_disk / "report" / "report.md").exists()
