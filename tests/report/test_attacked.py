"""Attacks next to certificates: the same images count on both sides, and no alarm is lost."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sween.attack import AttackOutcome
from sween.errors import BadInput
from sween.evaluation import certified_accuracy
from sween.records import Certificate
from sween.report import load_run, write_report
from sween.report.attacked import attacks_on, load_attacked
from sween.runs.attacked_certificates import certified_name, differences
from tests.evaluation.certificates import abstained, certificate
from tests.report.folders import (
    OUTCOMES,
    WITH_MEMBERS,
    attack_outcome,
    ensemble_rows,
    read_csv,
    write_attacked,
    write_run,
)
from tests.report.page.samples import read_report

EXITS = {"exits": {"sween+exact": "exact"}}


def _column(report: Path, name: str) -> list[str]:
    return [row[name] for row in read_csv(report, "attacks")]


def _certificates(radius: float, count: int = 4, **fields: Any) -> list[Certificate]:
    return [certificate(i, radius, **{"model": "sween", **fields}) for i in range(10, 10 + count)]


def _attacked(folder: Path, rows: list[Certificate], *outcomes: AttackOutcome) -> Path:
    """The report of a run and of an attack on its model."""
    run = write_run(folder / "run", rows)
    attack = write_attacked(folder / "pgd", outcomes or OUTCOMES)
    return write_report([run, attack], folder / "out")


def test_the_table_of_attacks(tmp_path: Path) -> None:
    rows = ensemble_rows()
    run = write_run(tmp_path / "run", rows, **WITH_MEMBERS)
    folder = write_attacked(tmp_path / "attacks")
    text = write_report([run, folder], tmp_path / "report").read_text()
    own = [row for row in rows if row.model == "sween"]
    certified = [100 * value for value in certified_accuracy(own, [0.0, 0.25, 0.75])]
    for eps, known, robust, broken, gone in (
        (0.0, certified[0], 75.0, 0.0, 0.0),
        (0.25, certified[1], 75.0, 0.0, 25.0),
        (0.75, certified[2], 50.0, 25.0, 25.0),
    ):
        shares = (f"{share:.1f}" for share in (known, robust, broken, gone, 0, 25))
        cells = (f"{eps:.2f}", *shares, str(int(eps == 0.75)), "4", "10:14", "8", "5", "100")
        assert f"| attacks | 0.50 | sween | pgd | {' | '.join(cells)} |" in text
    assert "pgd & 0.75 & " in (tmp_path / "report" / "attacks.tex").read_text()


def test_attacks_alone(tmp_path: Path) -> None:
    folder = write_attacked(tmp_path / "pgd-run", indices="10:19", images=9, skipped="7")
    report = write_report([folder], tmp_path / "out")
    text, content = report.read_text(), read_report(report)
    assert "| pgd | 0.25 | - | 75.0 |" in text
    assert text.count("| 25.0 | - | 4 of 9 |") == 3  # no certificates, nothing said of alarms
    assert (content["table"], content["runs"]) == (None, [])
    (table,) = content["tables"]
    assert "50.0 (6.7 to 93.3), 75.0 (19.4 to 99.4)" in table["notes"][0]
    assert table["notes"][1] == "pgd-run: 1 image could not be read and is not counted."
    assert all(f"\n{note}\n" in text for note in table["notes"])
    (made,) = content["others"]
    assert made["name"] == "Attack pgd-run"
    assert ["attack", "pgd"] in made["provenance"][0][1]


@pytest.mark.parametrize(
    ("rows", "config"),
    [
        (_certificates(0.6), {"votes": "soft"}),  # another classifier
        (_certificates(0.6), {"fingerprint": "e" * 64}),
        (_certificates(0.6, 3), {}),  # not of all attacked images
    ],
)
def test_other_certificates_give_no_certified_accuracy(
    tmp_path: Path, rows: list[Certificate], config: dict[str, Any]
) -> None:
    run = write_run(tmp_path / "run", rows, **config)
    attack = write_attacked(tmp_path / "attacks")
    assert attacks_on(load_run(run), [load_attacked(attack)]) == []
    assert "| pgd | 0.75 | - |" in write_report([run, attack], tmp_path / "out").read_text()


def test_the_page_raises_the_same_alarm(tmp_path: Path) -> None:
    report = _attacked(tmp_path, _certificates(0.6))
    assert _column(report, "alarms") == ["0", "0", "1"]
    own = read_report(report)["runs"][0]
    assert [point["alarms"] for point in own["attacks"]] == [0, 0, 1]
    assert ["samples", "8"] in dict(own["provenance"])["Attack pgd"]


def test_attacks_of_one_name_stay_apart_in_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", _certificates(0.1))
    fewer = [row for row in OUTCOMES if row.index < 12]
    folders = [write_attacked(tmp_path / "all"), write_attacked(tmp_path / "some", fewer)]
    points = read_report(write_report([run, *folders], tmp_path / "out"))["runs"][0]["attacks"]
    assert [(point["attack"], point["count"]) for point in points] == [
        *[("pgd (all)", 4)] * 3,
        *[("pgd (some)", 2)] * 3,
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (slice(0, -1), r"radius 0\.75: expected every image once"),
        (slice(0, 0), "rows of attacks"),
    ],
)
def test_unfinished_attacks_are_refused(tmp_path: Path, rows: slice, message: str) -> None:
    folder = write_attacked(tmp_path / "attacks")
    path = folder / "attacks.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[rows]))
    with pytest.raises(BadInput, match=message):
        load_attacked(folder)


def test_another_label_in_an_attack_is_refused(tmp_path: Path) -> None:
    outcomes = [dataclasses.replace(row, label=2) for row in OUTCOMES]
    with pytest.raises(BadInput, match="label of image 10 in pgd: expected 1 as in run, got 2"):
        _attacked(tmp_path, _certificates(0.5), *outcomes)
    assert not (tmp_path / "out").exists()


def test_what_the_attack_abstained_on_counts_as_certified(tmp_path: Path) -> None:
    """Few votes abstain where many certify: accuracy under attack must not be below certified."""
    outcomes = [
        *(
            attack_outcome(10, eps, "declined", clean_prediction=-1, prediction=-1)
            for eps in (0.2, 0.5)
        ),
        *(attack_outcome(11, eps, "wrong", clean_prediction=0, prediction=0) for eps in (0.2, 0.5)),
        *(attack_outcome(index, eps, "robust") for index in (12, 13) for eps in (0.2, 0.5)),
    ]
    report = _attacked(tmp_path, _certificates(0.6), *outcomes)
    assert [float(share) for share in _column(report, "empirical_accuracy")] == [1.0, 1.0, 1.0]
    assert [float(share) for share in _column(report, "certified_accuracy")] == [1.0, 1.0, 1.0]
    page = read_report(report)["runs"][0]["attacks"]
    assert [point["robust"] for point in page] == [4, 4, 4]


def test_a_certificate_of_another_class_makes_a_correct_answer_wrong(tmp_path: Path) -> None:
    rows = [*_certificates(0.6, 3), certificate(13, 0.6, model="sween", prediction=0)]
    outcomes = [attack_outcome(index, 0.5, "robust") for index in range(10, 14)]
    report = _attacked(tmp_path, rows, *outcomes)
    assert [float(share) for share in _column(report, "wrong")] == [0.25, 0.25]


def test_an_abstaining_certificate_changes_nothing(tmp_path: Path) -> None:
    report = _attacked(tmp_path, [abstained(index, model="sween") for index in range(10, 14)])
    assert [float(share) for share in _column(report, "declined")] == [0.25] * 3
    assert not report.with_name("alarms.csv").exists()


@pytest.mark.parametrize("other", [{"radius": 0.1}, {"radius": 0.9, "prediction": 0}])
@pytest.mark.parametrize("swapped", [False, True])
def test_an_alarm_by_any_run_is_raised_and_named(
    tmp_path: Path, other: dict[str, Any], swapped: bool
) -> None:
    """The other run certifies less, or a class that is not the true one."""
    runs = [
        write_run(tmp_path / name, _certificates(**own))
        for name, own in (("other", other), ("run", {"radius": 0.6}))
    ]
    folders = [*(runs[::-1] if swapped else runs), write_attacked(tmp_path / "pgd")]
    report = write_report(folders, tmp_path / "out")
    assert _column(report, "alarms") == ["0", "0", "1"]
    (alarm,) = read_csv(report, "alarms")
    assert (alarm["attack"], alarm["model"], alarm["index"]) == ("pgd", "sween", "12")
    assert (float(alarm["distance"]), float(alarm["certified_radius"])) == (0.375, 0.6)
    assert alarm["image_kept"] == "no"
    assert "Alarms" in [table["title"] for table in read_report(report)["tables"]]


@pytest.mark.parametrize(("exit", "certified"), [("none", "0.0"), ("exact", "1.0"), ("paper", "")])
def test_an_exit_is_paired_with_the_certificates_of_that_exit(
    tmp_path: Path, exit: str, certified: str
) -> None:
    rows = _certificates(0.1)
    rows += [dataclasses.replace(row, model="sween+exact", radius=0.6) for row in rows]
    attack = write_attacked(tmp_path / "pgd", exit=exit)
    report = write_report([write_run(tmp_path / "run", rows, **EXITS), attack], tmp_path / "out")
    assert _column(report, "certified_accuracy")[1] == certified


@pytest.mark.parametrize("order", [("several", "single"), ("single", "several")])
def test_runs_that_name_an_exit_differently_raise_the_same_alarm(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """One run has several exits, one the attacked exit alone; only the latter certifies so far."""
    rows = _certificates(0.1)
    several = [*rows, *(dataclasses.replace(row, model="sween+exact") for row in rows)]
    write_run(tmp_path / "several", several, **EXITS)
    write_run(tmp_path / "single", _certificates(0.6), exit="exact")
    attack = write_attacked(tmp_path / "pgd", exit="exact")
    report = write_report([*(tmp_path / name for name in order), attack], tmp_path / "out")
    assert _column(report, "alarms") == ["0", "0", "1"]
    assert len(read_csv(report, "alarms")) == 1
    content = read_report(report)
    for run, name in enumerate(order):
        points = content["runs"][run]["attacks"]
        model = "sween+exact" if name == "several" else "sween"
        assert {point["model"] for point in points} == {model}
        assert [point["alarms"] for point in points] == [0, 0, int(name == "single")]
    assert len(list((tmp_path / "out").glob("attacked-*.png"))) == 2


@pytest.mark.parametrize(
    ("attack", "run", "name"),
    [
        ({"model": "s", "exit": "none"}, {"exit": "none"}, "s"),
        ({"model": "s", "exit": "exact"}, {"exit": "none"}, None),
        (
            {"model": "s", "exit": "exact"},
            {"exit": "none", "exits": {"s+exact": "exact"}},
            "s+exact",
        ),
        ({"model": "m", "exit": "none"}, {"exit": "exact", "members": ["m"]}, "m"),
        ({"model": "m", "exit": "exact"}, {"exit": "exact", "members": ["m"]}, None),
        ({"model": "m", "exit": "none"}, {"model": "s", "exit": "none"}, None),
        (
            {"model": "m", "exit": "none"},
            {"model": "s", "exit": "exact", "exits": {"s+none": "none"}},
            None,
        ),
    ],
)
def test_who_was_certified(attack: dict[str, Any], run: dict[str, Any], name: str | None) -> None:
    assert certified_name(attack, run) == name
    assert bool(differences(attack, run)) == (name is None)


@pytest.mark.parametrize(
    ("changes", "bold"), [({"samples": 2}, False), ({"index": 62}, False), ({}, True)]
)
def test_models_are_compared_under_the_same_attack_alone(
    tmp_path: Path, changes: dict[str, Any], bold: bool
) -> None:
    """Bold says which of several is best: not one that was attacked less, or on other images."""
    one, other = (
        write_attacked(
            tmp_path / name, [dataclasses.replace(attack_outcome(12, 0.5, outcome), **own)]
        )
        for name, outcome, own in (("one", "broken", {}), ("other", "robust", changes))
    )
    text = write_report([one, other], tmp_path / "out").read_text()
    assert ("**Bold**" in text) == bold
    assert ("| **100.0** |" in text) == bold
