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


@pytest.fixture
def known(made: Made, tmp_path: Path) -> Path:
    """Certificates of the images that are attacked, the members' too."""
    options = "--indices 0:3 --n 1000 --alpha 0.05 --members --quiet"
    succeed(f"certify {made.ensemble} {options} --out {tmp_path}/certificates")
    return tmp_path / "certificates"


def attack_line(made: Made, known: Path, options: str = "", *, source: Path | None = None) -> str:
    line = f"attack {source or made.ensemble} --eps 0.25 {QUICK} --certificates {known}"
    return f"{line} --out {known.with_name('out')} {options}"


def test_a_false_certificate_gives_exit_code_1_and_again_when_it_is_read(
    made: Made, tmp_path: Path
) -> None:
    known = tmp_path / "certificates"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 10000 --quiet --alpha 0.05 --out {known}")
    # Votes that were never cast, and the radius that they give.
    Forgery(known).change(lambda row: all_votes_for(row["label"], row))
    strong = QUICK.replace("--steps 2", "--steps 20").replace("--n 200", "--n 2000")
    line = f"attack {made.ensemble} --eps 1.7 {strong} --certificates {known} --out {tmp_path}/out"
    for _ in range(2):
        code, _, stderr = run_line(line)
        assert code == 1
        assert "inside" in stderr
    assert any(row["alarm"] for row in rows_of(tmp_path / "out", "attacks.jsonl"))


@pytest.mark.parametrize("reader", ["attack", "report"])
def test_certified_radii_that_were_taken_away_are_missed(
    reader: str, made: Made, known: Path, tmp_path: Path
) -> None:
    """By whoever goes on from the rows or reports them, not by verify alone."""
    line, out = attack_line(made, known), tmp_path / "out"
    succeed(line)
    assert not any(row["alarm"] for row in rows_of(out, "attacks.jsonl"))
    Forgery(out, "attacks.jsonl").change(lambda row: {"certified_radius": None})
    wanted = line if reader == "attack" else f"report {out} --out {tmp_path}/report"
    assert_refused(wanted, "certified radii are not those", watched=(tmp_path,))


@pytest.mark.parametrize("reader", ["certify", "attack"])
def test_labels_are_held_against_the_data_at_hand(
    reader: str, made: Made, known: Path, tmp_path: Path
) -> None:
    Forgery(known).change(
        lambda row: {"label": (row["label"] + 1) % 10} if row["index"] == 0 else {}
    )
    certify = f"certify {made.ensemble} --indices 0:3 --n 1000 --alpha 0.05 --members --out {known}"
    line = certify if reader == "certify" else attack_line(made, known)
    assert_refused(line, "index 0", "label is", watched=(tmp_path,))


def test_a_candidate_stands_beside_its_certificates(
    made: Made, known: Path, tmp_path: Path
) -> None:
    """Certified in one pass with the ensemble, attacked on its own, set side by side."""
    out, report = tmp_path / "out", tmp_path / "report"
    name = "digits-mlp-seed1"
    succeed(attack_line(made, known, f"--member {name}"))
    radii = {
        row["index"]: row["radius"]
        for row in rows_of(known)
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
    ("options", "part"),
    [
        ("--certificates nowhere", "nowhere"),
        ("--member resnet9000", "resnet9000"),
        ("--member digits-mlp-seed1 --exit exact", "--exit"),
        ("--indices 0:4", "none for 1 of them, such as image 3"),
    ],
)
def test_bad_options(options: str, part: str, made: Made, known: Path, tmp_path: Path) -> None:
    assert_refused(attack_line(made, known, options), part, watched=(tmp_path,))


def test_certificates_of_another_ensemble_are_refused(
    made: Made, known: Path, tmp_path: Path
) -> None:
    line = attack_line(made, known, source=made.runs[0])
    assert_refused(line, "certificates of the classifier", watched=(tmp_path,))
    soft = tmp_path / "soft"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 500 --votes soft --quiet --out {soft}")
    assert_refused(attack_line(made, soft), "votes 'soft'", watched=(tmp_path,))


def test_autoattack_asks_for_its_package(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = f"attack {made.ensemble} --eps 0.5 --indices 0:1 --quiet --out {tmp_path}/out"
    assert_refused(line, "pip install 'sween[attack]'", watched=(tmp_path,))
