"""`sween verify`: accepts what was written, and finds whatever was changed since."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sween.errors import SweenError
from sween.runs import verify_folder
from tests.cli.command import assert_check_failed, run_line, succeed
from tests.cli.conftest import Made
from tests.cli.forging import Forgery, Row, moved

PLACE = 4
"""A certified answer of the second member at index 1."""


def test_an_untouched_run_is_accepted(made: Made) -> None:
    said = succeed(f"verify {made.certificates}")
    assert said.startswith("18 rows re-derived: 6 images, 3 models")
    assert "digits-mlp-seed1, digits-mlp-seed2, SWEEN-2" in said


def test_a_mismatch_is_one_line_with_exit_code_1(forgery: Forgery) -> None:
    forgery.change(lambda row: {"radius": row["radius"] + 0.01}, PLACE)
    said = ("certificates.jsonl, line 5 (index 1)", "radius is")
    assert_check_failed(run_line(f"verify {forgery.folder}"), *said)


FORGERIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "a radius raised by a hair": (lambda row: {"radius": row["radius"] * (1 + 5e-10)}, "radius is"),
    "all radii": (
        lambda row: {name: row[name] * 2 for name in row if name.startswith("radius")},
        "radius is",
    ),
    "radius of zero": (lambda row: {"radius": 0.0}, "radius is 0.0"),
    "radius_cohen": (lambda row: {"radius_cohen": 3.0}, "radius_cohen is 3.0"),
    "radius_cohen, none": (lambda row: {"radius_cohen": None}, "radius_cohen is None"),
    "radius_two_class": (lambda row: {"radius_two_class": 3.0}, "radius_two_class is 3.0"),
    "radius_two_class, none": (lambda row: {"radius_two_class": None}, "radius_two_class is None"),
    "prediction": (lambda row: {"prediction": (row["prediction"] + 1) % 10}, "prediction is"),
    "abstention": (lambda row: {"prediction": -1}, "prediction is -1"),
    "candidate": (lambda row: {"candidate": (row["candidate"] + 1) % 10}, "candidate is"),
    "lower_bound": (lambda row: {"lower_bound": row["lower_bound"] + 0.01}, "lower_bound is"),
    "one more vote": (
        lambda row: {
            "estimation_counts": [row["estimation_counts"][0] + 1, *row["estimation_counts"][1:]]
        },
        "estimation_counts sum to 201",
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
    "n": (lambda row: {"n": 201}, "n is 201"),
    "n and samples": (lambda row: {"n": 201, "samples": 301}, "samples - n0 is 201"),
    "n without end": (
        lambda row: {"n": 10**9 + 1, "samples": 10**9 + 101, "estimation_counts": [10**9 + 1]},
        "1000000001",
    ),
    "n0": (lambda row: {"n0": 99}, "n0 is 99"),
    "samples": (lambda row: {"samples": 3000}, "samples - n0 is 2900"),
    "alpha": (lambda row: {"alpha": 0.01}, "alpha is 0.01"),
    "sigma": (lambda row: {"sigma": 5.0}, "sigma is 5.0"),
    "bound": (lambda row: {"bound": "two-class"}, "bound is 'two-class'"),
    "sampling": (lambda row: {"sampling": "decide"}, "sampling is 'decide'"),
    "seed": (lambda row: {"seed": 1}, "seed is 1"),
    "exit": (lambda row: {"exit": "exact"}, "exit is 'exact'"),
    "model": (lambda row: {"model": "digits-resnet"}, "digits-resnet is not of this run"),
    "the other member": (lambda row: {"model": "digits-mlp-seed1"}, "comes twice"),
    "index, another": (lambda row: {"index": 6}, "index 6"),
    "index, its neighbour": (lambda row: {"index": 2}, "comes twice"),
    "radius as text": (lambda row: {"radius": "0.4"}, "radius '0.4'"),
    "fewer evaluations than every member's": (
        lambda row: {"member_evaluations": row["member_evaluations"] - 1},
        "member_evaluations",
    ),
    "too many evaluations": (lambda row: {"member_evaluations": 10**6}, "member_evaluations"),
    "votes": (lambda row: {"votes": "soft"}, "scores are missing with soft votes"),
    "votes of no kind": (lambda row: {"votes": "mild"}, "votes 'mild'"),
    "scores": (lambda row: {"estimation_scores": [1024, 200]}, "estimation_scores"),
    "noise": (lambda row: {"noise": "exact"}, "noise 'exact'"),
    "precision": (lambda row: {"precision": "int4"}, "precision is 'int4'"),
    "forward_rows": (lambda row: {"forward_rows": 9}, "forward_rows is 9"),
    "more forward_rows": (lambda row: {"forward_rows": 1000}, "forward_rows is 1000"),
    "decisions": (lambda row: {"decisions": {"9.0": True}}, "decisions are {'9.0': True}"),
    "label": (lambda row: {"label": (row["label"] + 1) % 10}, "of the image's other rows"),
    "label beyond the classes": (lambda row: {"label": 99}, "label is 99"),
    "negative label": (lambda row: {"label": -1}, "label is -1"),
    "no label": (lambda row: {"label": None}, "label is None"),
    "negative time": (lambda row: {"seconds": -1.0}, "seconds is -1.0"),
    "an extra field": (lambda row: {"certified": True}, "unknown ['certified']"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_row_with_a_fitting_checksum(name: str, forgery: Forgery) -> None:
    change, said = FORGERIES[name]
    forgery.change(change, PLACE)
    found = forgery.refused()
    assert "certificates.jsonl, line " in found
    assert said in found


@pytest.mark.parametrize("tag", ["0" * 16, None])
def test_rows_of_another_run(tag: str | None, forgery: Forgery) -> None:
    forgery.write([row | {"run": tag} for row in forgery.rows()], tagged=False)
    assert "line 1 (index 0): it belongs to a run of another config" in forgery.refused()


def test_deleted_repeated_and_reordered_rows(forgery: Forgery) -> None:
    lines = forgery.path.read_bytes().splitlines(keepends=True)
    forgery.path.write_bytes(b"".join(lines[:PLACE] + lines[PLACE + 1 :]))
    said = forgery.refused()
    assert "1 of 18 rows are missing" in said
    assert "index 1 and model digits-mlp-seed2; run the same `sween certify` again" in said
    forgery.path.write_bytes(b"")
    assert "18 of 18 rows are missing" in forgery.refused()
    forgery.path.write_bytes(b"".join([*lines, lines[PLACE]]))
    assert "line 19 (index 1)" in forgery.refused()
    forgery.path.write_bytes(b"".join(lines[::-1]))
    assert verify_folder(forgery.folder).rows == 18


def test_a_compressed_run(forgery: Forgery) -> None:
    content = forgery.path.read_bytes()
    forgery.path.unlink()
    packed = forgery.folder / "certificates.jsonl.gz"
    packed.write_bytes(gzip.compress(content))
    assert verify_folder(forgery.folder).rows == 18
    packed.write_bytes(gzip.compress(content.replace(b'"n": 200', b'"n": 201', 1)))
    assert "certificates.jsonl.gz, line 1 (index 0)" in forgery.refused()
    whole = gzip.compress(content)
    flipped = whole[:500] + bytes([whole[500] ^ 0xFF]) + whole[501:]
    for damaged in (whole[:-9], whole[:200], b"no gzip", flipped):
        packed.write_bytes(damaged)
        assert "restore the file" in forgery.refused()


@pytest.mark.parametrize("name", ["alpha", "fingerprint", "data", "indices", "weights"])
def test_rows_belong_to_their_config(name: str, forgery: Forgery) -> None:
    """A config of another model, data or weighting does not fit the rows."""
    path = forgery.folder / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    changed = [
        re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), line, count=1)
        if line.startswith(f"{name} = ")
        else line
        for line in lines
    ]
    assert changed != lines
    path.write_text("".join(changed))
    with pytest.raises(SweenError):
        verify_folder(forgery.folder)


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
    forgery = Forgery(tmp_path / "out")
    verify_folder(forgery.folder)
    place = next(k for k, row in enumerate(forgery.rows()) if row["exit"] == "exact")
    counts = forgery.rows()[place]["selection_counts"]
    ranked = sorted(range(10), key=lambda k: -counts[k])
    forgery.change(lambda row: {"selection_counts": moved(counts, ranked[2], ranked[3])}, place)
    assert "selection_counts with an exact exit are not those" in forgery.refused()
