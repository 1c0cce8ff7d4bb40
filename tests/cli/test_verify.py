"""`sween verify`: accepts what was written, and finds whatever was changed since."""

import dataclasses
import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sween.records import Certificate, row_checksum, to_line
from tests.cli.command import Outcome, assert_check_failed, run_line, succeed
from tests.cli.conftest import Made

FIELDS = ["schema", *(field.name for field in dataclasses.fields(Certificate)), "checksum"]
LINE = 5
"""A certified answer of the second member at index 1."""

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy of the finished run, to be altered."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "certificates.jsonl"

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)

    def write(self, lines: list[bytes]) -> None:
        self.path.write_bytes(b"".join(lines))

    def row(self, number: int = LINE) -> Row:
        row: Row = json.loads(self.lines()[number - 1])
        return row

    def put(self, row: Row, number: int = LINE) -> None:
        """Write a row as sween would, its checksum made to fit."""
        lines = self.lines()
        lines[number - 1] = to_line(row | {"checksum": row_checksum(row)})
        self.write(lines)

    def verify(self) -> Outcome:
        return run_line(f"verify {self.folder}")


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Copy:
    return Copy(Path(shutil.copytree(made.certificates, tmp_path / "run")))


def test_an_untouched_run_is_accepted(made: Made) -> None:
    said = succeed(f"verify {made.certificates}")
    assert said.startswith("18 rows re-derived: 6 images, 3 models")
    assert "digits-mlp-seed1, digits-mlp-seed2, SWEEN-2" in said


def test_the_altered_row_is_a_certified_one(copy: Copy) -> None:
    row = copy.row()
    assert row["radius"] > 0
    assert row["prediction"] == row["candidate"] >= 0
    assert list(row) == FIELDS


def with_one_character_changed(line: str, field: str) -> str:
    """Another digit or letter in the text of one value; null, which has neither, becomes {}."""
    start = line.index(f'"{field}": ') + len(field) + 4
    value, stop = json.JSONDecoder().raw_decode(line, start)
    text = line[start:stop]
    if value is None:
        return f"{line[:start]}{{}}{line[stop:]}"
    match = re.search(r"[0-9]|[a-z]", text)
    assert match is not None
    old = match.group()
    new = chr(ord(old) + (-1 if old in "9z" else 1))
    place = start + match.start()
    return f"{line[:place]}{new}{line[place + 1 :]}"


@pytest.mark.parametrize("field", FIELDS)
def test_one_character_of_any_field(field: str, copy: Copy) -> None:
    lines = copy.lines()
    changed = with_one_character_changed(lines[LINE - 1].decode(), field)
    assert json.loads(changed) != json.loads(lines[LINE - 1])
    lines[LINE - 1] = changed.encode()
    copy.write(lines)
    index = json.loads(changed)["index"]
    assert_check_failed(copy.verify(), f"certificates.jsonl, line {LINE} (index {index})")


def moved(counts: list[int], source: int, to: int, votes: int = 1) -> list[int]:
    changed = list(counts)
    changed[source] -= votes
    changed[to] += votes
    return changed


FORGERIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "radius": (lambda row: {"radius": row["radius"] + 0.01}, "radius is"),
    "radius, one digit in a million": (
        lambda row: {"radius": row["radius"] * (1 + 1e-6)},
        "radius is",
    ),
    "all radii": (
        lambda row: {name: row[name] * 2 for name in row if name.startswith("radius")},
        "radius is",
    ),
    "radius of zero": (lambda row: {"radius": 0.0}, "radius is 0.0"),
    "radius_cohen": (lambda row: {"radius_cohen": 3.0}, "radius_cohen is 3.0"),
    "radius_cohen, none": (lambda row: {"radius_cohen": None}, "radius_cohen is None"),
    "radius_two_class": (lambda row: {"radius_two_class": 3.0}, "radius_two_class is 3.0"),
    "prediction": (lambda row: {"prediction": (row["prediction"] + 1) % 10}, "prediction is"),
    "abstention": (lambda row: {"prediction": -1}, "prediction is -1"),
    "candidate": (lambda row: {"candidate": (row["candidate"] + 1) % 10}, "candidate is"),
    "lower_bound": (lambda row: {"lower_bound": row["lower_bound"] + 0.01}, "lower_bound is"),
    "one more vote": (
        lambda row: {
            "estimation_counts": [row["estimation_counts"][0] + 1, *row["estimation_counts"][1:]]
        },
        "estimation_counts sum to 201, samples - n0 is 200",
    ),
    "a vote moved": (
        lambda row: {"estimation_counts": moved(row["estimation_counts"], row["candidate"], 0)},
        "radius is",
    ),
    "negative count": (
        lambda row: {
            "estimation_counts": moved(row["estimation_counts"], 0, row["candidate"], 200)
        },
        "estimation_counts has a negative count",
    ),
    "other selection": (
        lambda row: {"selection_counts": row["selection_counts"][::-1]},
        "candidate is",
    ),
    "selection votes": (
        lambda row: {"selection_counts": [0, *row["selection_counts"][1:-1], 99]},
        "selection_counts sum to",
    ),
    "no counts": (lambda row: {"estimation_counts": []}, "10 and 0 classes"),
    "one more class": (
        lambda row: {"estimation_counts": [*row["estimation_counts"], 0]},
        "10 and 11 classes",
    ),
    "counts of a float": (lambda row: {"estimation_counts": [200.0]}, "estimation_counts"),
    "n": (lambda row: {"n": 201}, "n is 201"),
    "n and samples": (lambda row: {"n": 201, "samples": 301}, "samples - n0 is 201"),
    "n without end": (
        lambda row: {"n": 10**9 + 1, "samples": 10**9 + 101, "estimation_counts": [10**9 + 1]},
        "where bounds are not proven",
    ),
    "n0": (lambda row: {"n0": 99}, "n0 is 99"),
    "samples": (lambda row: {"samples": 3000}, "samples - n0 is 2900"),
    "alpha": (lambda row: {"alpha": 0.01}, "alpha is 0.01"),
    "sigma": (lambda row: {"sigma": 5.0}, "sigma is 5.0"),
    "bound": (lambda row: {"bound": "two-class"}, 'bound is "two-class"'),
    "sampling": (lambda row: {"sampling": "decide"}, 'sampling is "decide"'),
    "seed": (lambda row: {"seed": 1}, "seed is 1"),
    "exit": (lambda row: {"exit": "exact"}, "exit is 'exact'"),
    "model": (lambda row: {"model": "digits-resnet"}, "'digits-resnet' is not of this run"),
    "the other member": (lambda row: {"model": "digits-mlp-seed1"}, "comes twice"),
    "index, another": (lambda row: {"index": 6}, "is not among the run's indices"),
    "index, its neighbour": (lambda row: {"index": 2}, "of the image's other rows"),
    "a radius of a kind": (lambda row: {"radius": True}, "radius True"),
    "radius as text": (lambda row: {"radius": "0.4"}, "radius '0.4'"),
    "two-class radius, none": (
        lambda row: {"radius_two_class": None},
        "radius_two_class is None",
    ),
    "a radius raised by a hair": (
        lambda row: {"radius": row["radius"] * (1 + 5e-10)},
        "radius is",
    ),
    "fewer evaluations than every member's": (
        lambda row: {"member_evaluations": row["member_evaluations"] - 1},
        "member_evaluations",
    ),
    "too few evaluations": (lambda row: {"member_evaluations": 1}, "member_evaluations 1 is not"),
    "too many evaluations": (lambda row: {"member_evaluations": 10**6}, "member_evaluations"),
    "votes": (lambda row: {"votes": "soft"}, "scores are missing with soft votes"),
    "votes of no kind": (lambda row: {"votes": "mild"}, "votes 'mild' is none of hard, soft"),
    "scores": (lambda row: {"estimation_scores": [1024, 200]}, "given with hard votes"),
    "noise": (lambda row: {"noise": "exact"}, "noise 'exact' is none of float32"),
    "precision": (lambda row: {"precision": "int4"}, "precision is 'int4'"),
    "forward_rows": (lambda row: {"forward_rows": 9}, "forward_rows is 9"),
    "more forward_rows": (lambda row: {"forward_rows": 1000}, "forward_rows is 1000"),
    "decisions": (
        lambda row: {"decisions": {"9.0": True}},
        "decisions are {'9.0': True}, the votes give None",
    ),
    "label": (lambda row: {"label": (row["label"] + 1) % 10}, "of the image's other rows"),
    "run": (lambda row: {"run": "0" * 16}, "a run of another config"),
    "no run": (lambda row: {"run": None}, "a run of another config"),
    "an extra field": (lambda row: {"certified": True}, "unknown ['certified']"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_row_with_a_fitting_checksum(name: str, copy: Copy) -> None:
    change, said = FORGERIES[name]
    row = copy.row()
    copy.put(row | change(row))
    assert_check_failed(copy.verify(), "certificates.jsonl, line ", "(index ", said)


def test_a_deleted_row(copy: Copy) -> None:
    row = copy.row()
    copy.write([line for number, line in enumerate(copy.lines(), 1) if number != LINE])
    missing = f"1 of 18 rows are missing, the first that of {row['model']} at index {row['index']}"
    assert_check_failed(copy.verify(), missing, "again to finish")


def test_every_row_deleted(copy: Copy) -> None:
    copy.write([])
    assert_check_failed(copy.verify(), "18 of 18 rows are missing")


def test_a_doubled_row(copy: Copy) -> None:
    lines = copy.lines()
    copy.write([*lines, lines[LINE - 1]])
    assert_check_failed(copy.verify(), "line 19 (index 1)", "digits-mlp-seed2 comes twice")


def test_a_row_of_another_run(copy: Copy, made: Made, tmp_path: Path) -> None:
    succeed(f"certify {made.runs[1]} --indices 1 --n 250 --quiet --out {tmp_path}/other")
    lines = copy.lines()
    lines[LINE - 1] = (tmp_path / "other/certificates.jsonl").read_bytes()
    copy.write(lines)
    assert_check_failed(copy.verify(), f"line {LINE} (index 1)", "n is 250")


def test_a_config_of_other_settings(copy: Copy) -> None:
    config = copy.folder / "config.toml"
    config.write_text(config.read_text().replace("alpha = 0.001", "alpha = 0.0001"))
    assert_check_failed(copy.verify(), "line 1 (index 0)", "alpha is 0.001")


def test_rows_in_another_order_are_the_same_rows(copy: Copy) -> None:
    copy.write(copy.lines()[::-1])
    assert copy.verify().code == 0


def test_a_packed_run(copy: Copy) -> None:
    content = copy.path.read_bytes()
    copy.path.unlink()
    packed = copy.folder / "certificates.jsonl.gz"
    packed.write_bytes(gzip.compress(content))
    assert copy.verify().stdout.startswith("18 rows re-derived")
    packed.write_bytes(gzip.compress(content.replace(b'"n": 200', b'"n": 201', 1)))
    assert_check_failed(copy.verify(), "certificates.jsonl.gz, line 1 (index 0)", "n is 201")
    whole = gzip.compress(content)
    flipped = whole[:500] + bytes([whole[500] ^ 0xFF]) + whole[501:]
    for damaged in (whole[:-9], whole[:200], b"no gzip", flipped):
        packed.write_bytes(damaged)
        assert_check_failed(copy.verify(), "certificates.jsonl.gz", "restore the file")


@pytest.mark.parametrize("name", ["fingerprint", "data", "indices", "weights"])
def test_rows_belong_to_their_config(name: str, copy: Copy) -> None:
    """A config of another model, data or weighting does not fit the rows."""
    path = copy.folder / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    changed = [
        re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), line, count=1)
        if line.startswith(f"{name} = ")
        else line
        for line in lines
    ]
    assert changed != lines
    path.write_text("".join(changed))
    assert copy.verify().code in {1, 2}


@pytest.mark.parametrize(
    "exits",
    [
        "--exit none --exit exact",
        "--exit exact --exit none",
        "--exit paper --exit exact --exit none",
    ],
)
def test_votes_with_an_exact_exit_are_those_of_the_full_ensemble(
    made: Made, tmp_path: Path, exits: str
) -> None:
    """Forged votes that fit their own row still have to fit the row of the full ensemble."""
    line = f"certify {made.ensemble} --indices 0:2 --n 200 --quiet {exits}"
    succeed(f"{line} --out {tmp_path}/out")
    run = Copy(tmp_path / "out")
    rows = len(run.lines())
    assert succeed(f"verify {run.folder}").startswith(f"{rows} rows")
    number = next(k for k in range(1, rows + 1) if run.row(k)["exit"] == "exact")
    row = run.row(number)
    counts = row["selection_counts"]
    ranked = sorted(range(10), key=lambda k: -counts[k])
    run.put(row | {"selection_counts": moved(counts, ranked[2], ranked[3])}, number)
    assert_check_failed(run.verify(), "selection_counts with an exact exit are not those")
