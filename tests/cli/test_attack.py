"""`sween attack` from the command line."""

import csv
import importlib.util
from pathlib import Path

import pytest

from tests.cli.command import assert_refused, run_line, succeed
from tests.cli.conftest import Made
from tests.cli.forging import Forgery, all_votes_for
from tests.cli.rows import rows_of

QUICK = "--attack pgd --samples 4 --steps 2 --n 200 --indices 0:3 --quiet"


def test_attack_writes_outcomes_and_prints_robust_accuracy(made: Made, tmp_path: Path) -> None:
    line = f"attack {made.ensemble} --eps 0.5 --eps 0.25 {QUICK} --out {tmp_path}/out"
    said = succeed(line)
    assert [part.split(":")[0] for part in said.splitlines()] == ["eps 0.25", "eps 0.5"]
    assert "% of 3 images" in said
    assert "attack success " in said
    rows = rows_of(tmp_path / "out", "attacks.jsonl")
    assert [(row["index"], row["eps"]) for row in rows] == [
        (index, eps) for index in range(3) for eps in (0.25, 0.5)
    ]
    assert succeed(line) == said


def test_a_break_inside_a_certified_radius_fails_the_check(made: Made, tmp_path: Path) -> None:
    known = tmp_path / "certificates"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 1000 --quiet --alpha 0.05 --out {known}")
    line = f"attack {made.ensemble} --eps 0.25 {QUICK} --certificates {known} --out {tmp_path}/out"
    assert "robust accuracy" in succeed(line)
    rows = rows_of(tmp_path / "out", "attacks.jsonl")
    assert any(row["certified_radius"] is not None for row in rows)
    assert not any(row["alarm"] for row in rows)


def test_a_false_certificate_gives_exit_code_1_and_again_when_it_is_read(
    made: Made, tmp_path: Path
) -> None:
    known = tmp_path / "certificates"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 10000 --quiet --alpha 0.05 --out {known}")
    forgery = Forgery(known)  # votes that were never cast, and the radius that they give
    forgery.change(lambda row: all_votes_for(row["label"], row))
    strong = QUICK.replace("--steps 2", "--steps 20").replace("--n 200", "--n 2000")
    line = f"attack {made.ensemble} --eps 1.7 {strong} --certificates {known} --out {tmp_path}/out"
    for _ in range(2):
        code, _, stderr = run_line(line)
        assert code == 1
        assert "inside" in stderr
    assert any(row["alarm"] for row in rows_of(tmp_path / "out", "attacks.jsonl"))


@pytest.mark.parametrize("reader", ["attack", "report"])
def test_certified_radii_that_were_taken_away_are_missed(
    reader: str, made: Made, tmp_path: Path
) -> None:
    """By whoever goes on from the rows or reports them, not by verify alone."""
    known, out = tmp_path / "certificates", tmp_path / "out"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 1000 --quiet --alpha 0.05 --out {known}")
    line = f"attack {made.ensemble} --eps 0.25 {QUICK} --certificates {known} --out {out}"
    succeed(line)
    Forgery(out, "attacks.jsonl").change(lambda row: {"certified_radius": None})
    wanted = line if reader == "attack" else f"report {out} --out {tmp_path}/report"
    assert_refused(wanted, "certified radii are not those", watched=(tmp_path,))


@pytest.mark.parametrize("reader", ["certify", "attack"])
def test_labels_are_held_against_the_data_at_hand(reader: str, made: Made, tmp_path: Path) -> None:
    known = tmp_path / "certificates"
    line = f"certify {made.ensemble} --indices 0:3 --n 1000 --quiet --alpha 0.05 --out {known}"
    succeed(line)
    Forgery(known).change(lambda row: {"label": (row["label"] + 1) % 10}, 0)
    if reader == "attack":
        line = (
            f"attack {made.ensemble} --eps 0.25 {QUICK} --certificates {known} --out {tmp_path}/o"
        )
    assert_refused(line, "index 0", "label is", watched=(tmp_path,))


def test_a_candidate_stands_beside_its_certificates(made: Made, tmp_path: Path) -> None:
    """Certified in one pass with the ensemble, attacked on its own, set side by side."""
    known, out, report = (tmp_path / name for name in ("certificates", "out", "report"))
    options = "--indices 0:3 --n 1000 --alpha 0.05 --members --quiet"
    succeed(f"certify {made.ensemble} {options} --out {known}")
    certified = rows_of(known, "certificates.jsonl")
    name = next(row["model"] for row in certified if not row["model"].startswith("SWEEN"))
    line = f"attack {made.ensemble} --member {name} --eps 0.25 {QUICK} --certificates {known}"
    succeed(f"{line} --out {out}")
    radii = {
        row["index"]: row["radius"]
        for row in certified
        if row["model"] == name and row["prediction"] == row["label"]
    }
    rows = rows_of(out, "attacks.jsonl")
    assert {row["model"] for row in rows} == {name}
    assert {row["index"]: row["certified_radius"] for row in rows} == {
        index: radii.get(index) for index in range(3)
    }
    succeed(f"verify {out}")
    succeed(f"report {known} {out} --out {report}")
    with (report / "attacks.csv").open() as file:
        start, row = csv.DictReader(file)
    assert (float(start["radius"]), float(row["radius"])) == (0, 0.25)
    assert float(start["certified_accuracy"]) == len(radii) / 3
    assert float(row["certified_accuracy"]) == sum(r >= 0.25 for r in radii.values()) / 3
    assert row["alarms"] == "0"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--certificates nowhere", ("nowhere",)),
        ("--member resnet9000", ("resnet9000",)),
        ("--member digits-mlp-seed1 --exit exact", ("--exit", "exact")),
    ],
)
def test_bad_options(options: str, parts: tuple[str, ...], made: Made, tmp_path: Path) -> None:
    line = f"attack {made.ensemble} --eps 0.5 {QUICK} {options} --out {tmp_path}/out"
    assert_refused(line, *parts, watched=(tmp_path,))


def test_certificates_of_another_ensemble_are_refused(made: Made, tmp_path: Path) -> None:
    line = f"attack {made.runs[0]} --eps 0.5 {QUICK} --certificates {made.certificates}"
    code, _, stderr = run_line(f"{line} --out {tmp_path}/out")
    assert code == 2
    assert "certificates of the classifier" in stderr
    soft = tmp_path / "soft"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 500 --votes soft --quiet --out {soft}")
    line = f"attack {made.ensemble} --eps 0.5 {QUICK} --certificates {soft}"
    code, _, stderr = run_line(f"{line} --out {tmp_path}/out")
    assert (code, "votes 'soft'" in stderr) == (2, True)


def test_an_image_without_a_certificate_is_refused(made: Made, tmp_path: Path) -> None:
    known = tmp_path / "certificates"
    succeed(f"certify {made.ensemble} --indices 0:2 --n 500 --quiet --out {known}")
    line = f"attack {made.ensemble} --eps 0.5 {QUICK} --certificates {known} --out {tmp_path}/out"
    code, _, stderr = run_line(line)
    assert (code, "none for 1 of them, such as image 2" in stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_autoattack_asks_for_its_package(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = f"attack {made.ensemble} --eps 0.5 --indices 0:1 --quiet --out {tmp_path}/out"
    code, _, stderr = run_line(line)
    assert code == 2
    assert "pip install 'sween[attack]'" in stderr
    assert not (tmp_path / "out").exists()
