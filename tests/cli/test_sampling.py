"""The ways of spending samples, end to end: rows, resuming, verify and its forgeries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sween.records import row_checksum, to_line
from tests.cli.command import run_line, succeed
from tests.cli.conftest import Made
from tests.cli.rows import rows_of

MODES = {
    "decide": "--sampling decide --radius 0.1 --radius 0.3",
    "tolerance": "--sampling tolerance --tolerance 0.2",
    "budget": "--sampling budget --budget 12000",
}
IMAGES = 5
Row = dict[str, Any]


def line(mode: str, made: Made, out: Path) -> str:
    return (
        f"certify {made.ensemble} --indices 0:{IMAGES} --n 3000 {MODES[mode]} --quiet --out {out}"
    )


@pytest.mark.parametrize("mode", MODES)
def test_rows_verify_and_cost_less(mode: str, made: Made, tmp_path: Path) -> None:
    said = succeed(line(mode, made, tmp_path / "out"))
    assert said.startswith("certified accuracy in % at ")
    assert ("  0.10  0.30  abstain" in said) == (mode == "decide")
    assert ("ACR" in said) == (mode != "decide")
    rows = rows_of(tmp_path / "out")
    assert [row["index"] for row in rows] == list(range(IMAGES))
    assert {row["sampling"] for row in rows} == {mode}
    assert {row["n0"] for row in rows} == {100 if mode == "decide" else 1000}
    assert sum(row["samples"] for row in rows) < IMAGES * (rows[0]["n0"] + 3000)
    if mode == "budget":
        assert sum(row["samples"] for row in rows) <= 12_000
    assert all((row["decisions"] is not None) == (mode == "decide") for row in rows)
    assert succeed(f"verify {tmp_path}/out").startswith(f"{IMAGES} rows re-derived")
    assert "SWEEN-2" in succeed(f"report {tmp_path}/out --out {tmp_path}/report")


@pytest.mark.parametrize("mode", MODES)
def test_a_stopped_run_goes_on_to_the_same_rows(mode: str, made: Made, tmp_path: Path) -> None:
    """Also where the votes of one image depend on the pilots of all."""
    succeed(line(mode, made, tmp_path / "whole"))
    succeed(line(mode, made, tmp_path / "stopped"))
    path = tmp_path / "stopped" / "certificates.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    succeed(line(mode, made, tmp_path / "stopped"))
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")


def test_decisions_agree_with_fixed_sampling(made: Made, tmp_path: Path) -> None:
    succeed(line("decide", made, tmp_path / "decide"))
    said = succeed(f"report {tmp_path / 'decide'} --out {tmp_path / 'report'}")
    assert "to decide the radii 0.1, 0.3: " in said
    assert "| sampling | decide 0.1, 0.3 |" in said
    assert "| noise | float32 |" in said
    succeed(f"certify {made.ensemble} --indices 0:{IMAGES} --n 3000 --quiet --out {tmp_path}/fixed")
    fixed = {row["index"]: row for row in rows_of(tmp_path / "fixed")}
    for row in rows_of(tmp_path / "decide"):
        for radius, yes in row["decisions"].items():
            # Within a hair of the radius the two may differ: each errs on its own side.
            if abs(fixed[row["index"]]["radius"] - float(radius)) > 0.02:
                assert yes == (fixed[row["index"]]["radius"] >= float(radius))


def _put(folder: Path, number: int, change: Callable[[Row], Row]) -> None:
    path = folder / "certificates.jsonl"
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    rows[number] |= change(rows[number])
    rows[number]["checksum"] = row_checksum(rows[number])
    path.write_bytes(b"".join(to_line(row) for row in rows))


def _without_a_vote(row: Row) -> Row:
    """One vote less, everything else as if it had never been drawn."""
    counts = list(row["estimation_counts"])
    counts[row["candidate"]] -= 1
    return {
        "estimation_counts": counts,
        "samples": row["samples"] - 1,
        "member_evaluations": row["member_evaluations"] - 2,
    }


def _more_votes(row: Row) -> Row:
    counts = list(row["estimation_counts"])
    counts[row["candidate"]] += 100
    return {
        "estimation_counts": counts,
        "samples": row["samples"] + 100,
        "n": row["n"] + 100,
        "member_evaluations": row["member_evaluations"] + 200,
    }


FORGERIES: dict[str, tuple[str, Callable[[Row], Row], str]] = {
    "a decision turned": (
        "decide",
        lambda row: {"decisions": {name: not yes for name, yes in row["decisions"].items()}},
        "decisions are",
    ),
    "a decision left out": ("decide", lambda row: {"decisions": None}, "decisions are None"),
    "a stop between looks": ("decide", _without_a_vote, "not a valid stopping point"),
    "decide, another n": ("decide", lambda row: {"n": 100_000}, "n is 100000"),
    "a radius for the runner-up": (
        "decide",
        lambda row: {"radius_two_class": 0.4},
        "radius_two_class is 0.4, the votes give None",
    ),
    "more votes than asked for": ("tolerance", _more_votes, "the pilot votes call for"),
    "more votes than paid for": ("budget", _more_votes, "the pilot votes of all images call for"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_row_is_found(name: str, made: Made, tmp_path: Path) -> None:
    mode, change, said = FORGERIES[name]
    out = tmp_path / "out"
    succeed(line(mode, made, out))
    _put(out, 1, change)
    if name.startswith("more votes"):  # what follows from the votes is forged as well
        from sween.bounds.decision import decide
        from sween.records import Certificate, from_row

        def rederived(row: Row) -> Row:
            found = from_row(Certificate, row)
            again = decide(
                found.selection_counts,
                found.estimation_counts,
                alpha=found.alpha,
                sigma=found.sigma,
            )
            return dict(vars(again))

        _put(out, 1, rederived)
    code, stdout, stderr = run_line(f"verify {out}")
    assert (code, stdout) == (1, "")
    assert said in stderr
    assert "(index 1)" in stderr


@pytest.mark.parametrize(
    ("line_", "said"),
    [
        ('bound = "two-class"', "cohen with decide"),
        ('votes = "soft"', "expected sampling fixed"),
        ("radii = [-1.0]", "none of them negative"),
    ],
)
def test_a_config_that_no_run_can_have(line_: str, said: str, made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed(line("decide", made, out))
    path = out / "config.toml"
    name = line_.partition(" ")[0]
    lines = [
        line_ if text.startswith(f"{name} =") else text for text in path.read_text().splitlines()
    ]
    assert line_ in lines
    path.write_text("\n".join(lines) + "\n")
    code, stdout, stderr = run_line(f"verify {out}")
    assert (code, stdout) == (2, "")
    assert said in stderr
