"""The ways of spending samples, end to end: rows, resuming, verify and its forgeries."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sween.errors import SweenError
from sween.runs import verify_folder
from tests.cli.command import succeed
from tests.cli.conftest import Made
from tests.cli.forging import Forgery, Row, rederived
from tests.cli.rows import rows_of

MODES = {
    "decide": "--sampling decide --radius 0.1 --radius 0.3",
    "tolerance": "--sampling tolerance --tolerance 0.2",
    "budget": "--sampling budget --budget 12000",
}
IMAGES = 5


def line(mode: str, made: Made, out: Path) -> str:
    return (
        f"certify {made.ensemble} --indices 0:{IMAGES} --n 3000 {MODES[mode]} --quiet --out {out}"
    )


@pytest.fixture(scope="module")
def finished(_made: tuple[Made, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished run of each mode."""
    base = tmp_path_factory.mktemp("modes")
    for mode in MODES:
        succeed(line(mode, _made[0], base / mode))
    return base


@pytest.fixture
def forged(finished: Path, tmp_path: Path) -> Callable[[str], Forgery]:
    """A copy of the run of a mode, to be altered."""
    return lambda mode: Forgery(Path(shutil.copytree(finished / mode, tmp_path / mode)))


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
def test_a_stopped_run_goes_on_to_the_same_rows(
    mode: str, made: Made, finished: Path, forged: Callable[[str], Forgery]
) -> None:
    """Also where the votes of one image depend on the pilots of all."""
    path = forged(mode).path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    succeed(line(mode, made, path.parent))
    assert rows_of(path.parent) == rows_of(finished / mode)


def test_decisions_agree_with_fixed_sampling(made: Made, finished: Path, tmp_path: Path) -> None:
    said = succeed(f"report {finished}/decide --out {tmp_path}/report")
    assert "to decide the radii 0.1, 0.3: " in said
    assert "| sampling | decide 0.1, 0.3 |" in said
    assert "| noise | float32 |" in said
    succeed(f"certify {made.ensemble} --indices 0:{IMAGES} --n 3000 --quiet --out {tmp_path}/fixed")
    fixed = {row["index"]: row for row in rows_of(tmp_path / "fixed")}
    for row in rows_of(finished / "decide"):
        for radius, yes in row["decisions"].items():
            # Within a hair of the radius the two may differ: each errs on its own side.
            if abs(fixed[row["index"]]["radius"] - float(radius)) > 0.02:
                assert yes == (fixed[row["index"]]["radius"] >= float(radius))


def without_a_vote(row: Row) -> Row:
    """One vote less, everything else as if it had never been drawn."""
    counts = list(row["estimation_counts"])
    counts[row["candidate"]] -= 1
    return {
        "estimation_counts": counts,
        "samples": row["samples"] - 1,
        "member_evaluations": row["member_evaluations"] - 2,
    }


def more_votes(row: Row) -> Row:
    """A hundred more, with the radius that they give."""
    counts = list(row["estimation_counts"])
    counts[row["candidate"]] += 100
    more = {"samples": row["samples"] + 100, "n": row["n"] + 100}
    more |= {"member_evaluations": row["member_evaluations"] + 200}
    return rederived(row | more | {"estimation_counts": counts})


FORGERIES: dict[str, tuple[str, Callable[[Row], Row], str]] = {
    "a decision turned": (
        "decide",
        lambda row: {"decisions": {name: not yes for name, yes in row["decisions"].items()}},
        "decisions are",
    ),
    "a decision left out": ("decide", lambda row: {"decisions": None}, "decisions are None"),
    "a stop between looks": ("decide", without_a_vote, "not a valid stopping point"),
    "decide, another n": ("decide", lambda row: {"n": 100_000}, "n is 100000"),
    "a radius for the runner-up": (
        "decide",
        lambda row: {"radius_two_class": 0.4},
        "radius_two_class is 0.4, the votes give None",
    ),
    "more votes than asked for": ("tolerance", more_votes, "the pilot votes call for"),
    "more votes than paid for": ("budget", more_votes, "the pilot votes of all images call for"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_row_is_found(name: str, forged: Callable[[str], Forgery]) -> None:
    mode, change, said = FORGERIES[name]
    forgery = forged(mode)
    forgery.change(change, 1)
    found = forgery.refused()
    assert said in found
    assert "(index 1)" in found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("bound", "two-class", "cohen with decide"),
        ("votes", "soft", "expected sampling fixed"),
        ("radii", [-1.0], "none of them negative"),
    ],
)
def test_a_config_that_no_run_can_have(
    name: str, value: object, said: str, forged: Callable[[str], Forgery]
) -> None:
    forgery = forged("decide")
    forgery.configure(**{name: value})
    with pytest.raises(SweenError, match=said):
        verify_folder(forgery.folder)
