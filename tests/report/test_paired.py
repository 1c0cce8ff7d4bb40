"""Attacks beside certificates: the same images count on both sides, and no alarm is lost."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sween.attack import AttackOutcome
from sween.evaluation import average_certified_radius
from sween.records import Certificate
from sween.report import write_report
from sween.runs.attacked_certificates import certified_name, differences
from tests.evaluation.certificates import abstained, certificate
from tests.report.folders import write_run
from tests.report.page.samples import read_page
from tests.report.test_more_tables import OUTCOMES, SETTINGS, _outcome, write_attacked

OF_SWEEN: dict[str, Any] = {"model": "sween", "fingerprint": "f" * 64, **SETTINGS}


def _lines(report: Path, name: str) -> list[dict[str, str]]:
    with report.with_name(f"{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


def _certificates(radius: float, count: int = 4, **fields: Any) -> list[Certificate]:
    return [certificate(index, radius, model="sween", **fields) for index in range(10, 10 + count)]


def test_what_the_judge_declined_counts_as_it_was_certified(tmp_path: Path) -> None:
    """Few votes abstain where many certify: attacked accuracy must not be below certified."""
    run = write_run(tmp_path / "run", _certificates(0.6), **OF_SWEEN)
    outcomes = [
        *(_outcome(10, eps, "declined", clean_prediction=-1, prediction=-1) for eps in (0.2, 0.5)),
        *(_outcome(11, eps, "wrong", clean_prediction=0, prediction=0) for eps in (0.2, 0.5)),
        *(_outcome(index, eps, "robust") for index in (12, 13) for eps in (0.2, 0.5)),
    ]
    report = write_report([run, write_attacked(tmp_path / "pgd", outcomes)], tmp_path / "out")
    rows = _lines(report, "attacks")
    assert [float(row["empirical_accuracy"]) for row in rows] == [1.0, 1.0, 1.0]
    assert [float(row["certified_accuracy"]) for row in rows] == [1.0, 1.0, 1.0]
    page = read_page(report.with_name("report.html"))[1]["runs"][0]["attacks"]
    assert [point["resisting"] for point in page] == [4, 4, 4]


def test_a_certificate_of_another_class_makes_a_right_answer_wrong(tmp_path: Path) -> None:
    rows = [*_certificates(0.6, 3), certificate(13, 0.6, model="sween", prediction=0)]
    run = write_run(tmp_path / "run", rows, **OF_SWEEN)
    outcomes = [_outcome(index, 0.5, "robust") for index in range(10, 14)]
    report = write_report([run, write_attacked(tmp_path / "pgd", outcomes)], tmp_path / "out")
    assert [float(row["wrong"]) for row in _lines(report, "attacks")] == [0.25, 0.25]


def test_an_abstaining_certificate_changes_nothing(tmp_path: Path) -> None:
    rows = [abstained(index, model="sween") for index in range(10, 14)]
    run = write_run(tmp_path / "run", rows, **OF_SWEEN)
    report = write_report([run, write_attacked(tmp_path / "pgd", OUTCOMES)], tmp_path / "out")
    assert [float(row["declined"]) for row in _lines(report, "attacks")] == [0.25] * 3


@pytest.mark.parametrize("order", [("short", "long"), ("long", "short")])
def test_an_alarm_by_any_run_is_raised_and_named(tmp_path: Path, order: tuple[str, str]) -> None:
    for name, radius in (("short", 0.1), ("long", 0.6)):
        write_run(tmp_path / name, _certificates(radius), **OF_SWEEN)
    attack = write_attacked(tmp_path / "pgd", OUTCOMES)
    report = write_report([*(tmp_path / name for name in order), attack], tmp_path / "out")
    assert [row["alarms"] for row in _lines(report, "attacks")] == ["0", "0", "1"]
    (alarm,) = _lines(report, "alarms")
    assert (alarm["attack"], alarm["model"], alarm["index"]) == ("pgd", "sween", "12")
    assert (float(alarm["distance"]), float(alarm["certified_radius"])) == (0.375, 0.6)
    assert alarm["image_kept"] == "no"
    titles = [table["title"] for table in read_page(report.with_name("report.html"))[1]["tables"]]
    assert "Alarms" in titles


def test_no_alarm_no_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", _certificates(0.1), **OF_SWEEN)
    report = write_report([run, write_attacked(tmp_path / "pgd", OUTCOMES)], tmp_path / "out")
    assert not report.with_name("alarms.csv").exists()


def test_an_exit_is_paired_with_the_certificates_of_that_exit(tmp_path: Path) -> None:
    rows = _certificates(0.1)
    rows += [dataclasses.replace(row, model="sween+exact", radius=0.6) for row in rows]
    run = write_run(tmp_path / "run", rows, exit="none", exits={"sween+exact": "exact"}, **OF_SWEEN)
    for exit_name, certified in (("none", 0.0), ("exact", 1.0), ("paper(x)", None)):
        attack = write_attacked(tmp_path / f"to-{exit_name}", OUTCOMES, exit=exit_name)
        report = write_report([run, attack], tmp_path / f"out-{exit_name}")
        shares = [row["certified_accuracy"] for row in _lines(report, "attacks")]
        assert shares[1] == ("" if certified is None else str(certified))


@pytest.mark.parametrize("order", [("several", "single"), ("single", "several")])
def test_runs_that_name_an_exit_differently_raise_the_same_alarm(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """One run has several exits, one the attacked exit alone; only the latter certifies so far."""
    rows = _certificates(0.1)
    several = [*rows, *(dataclasses.replace(row, model="sween+exact") for row in rows)]
    write_run(
        tmp_path / "several", several, exit="none", exits={"sween+exact": "exact"}, **OF_SWEEN
    )
    write_run(tmp_path / "single", _certificates(0.6), exit="exact", **OF_SWEEN)
    attack = write_attacked(tmp_path / "pgd", OUTCOMES, exit="exact")
    report = write_report([*(tmp_path / name for name in order), attack], tmp_path / "out")
    assert [row["alarms"] for row in _lines(report, "attacks")] == ["0", "0", "1"]
    assert len(_lines(report, "alarms")) == 1
    content = read_page(report.with_name("report.html"))[1]
    for run, name in enumerate(order):
        points = content["runs"][run]["attacks"]
        model = "sween+exact" if name == "several" else "sween"
        assert {point["model"] for point in points} == {model}
        assert [point["alarms"] for point in points] == [0, 0, int(name == "single")]
        (curve,) = (own for own in content["runs"][run]["models"] if own["name"] == model)
        reaching = [radius >= points[1]["radius"] for radius in curve["curves"]["cohen"]["radii"]]
        assert reaching == [name == "single"] * 4
    assert len(list((tmp_path / "out").glob("attacked-*.png"))) == 2


@pytest.mark.parametrize("order", [("other", "label"), ("label", "other")])
def test_a_run_that_certifies_another_class_hides_no_alarm(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    write_run(tmp_path / "label", _certificates(0.6), **OF_SWEEN)
    write_run(tmp_path / "other", _certificates(0.9, prediction=0), **OF_SWEEN)
    attack = write_attacked(tmp_path / "pgd", OUTCOMES)
    report = write_report([*(tmp_path / name for name in order), attack], tmp_path / "out")
    assert [row["alarms"] for row in _lines(report, "attacks")] == ["0", "0", "1"]
    (alarm,) = _lines(report, "alarms")
    assert float(alarm["certified_radius"]) == 0.6


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


def test_models_are_compared_under_the_same_attack_alone(tmp_path: Path) -> None:
    """Bold says which of several is best: not one that was attacked less, or on other images."""

    def attack(name: str, outcomes: list[AttackOutcome], **config: Any) -> Path:
        return write_attacked(tmp_path / name, outcomes, **config)

    def others(**fields: Any) -> list[AttackOutcome]:
        rows = [dataclasses.replace(row, **fields) for row in OUTCOMES]
        return [
            dataclasses.replace(row, outcome="robust") if row.index == 12 else row for row in rows
        ]

    weaker = attack("weaker", others(samples=2), samples=2)
    elsewhere = attack(
        "elsewhere", [dataclasses.replace(row, index=row.index + 50) for row in others()]
    )
    same = attack("same", others(), model="sween")
    base = attack("base", OUTCOMES)
    for folders, bold in (([base, weaker], 0), ([base, elsewhere], 0), ([base, same], 1)):
        text = write_report(folders, tmp_path / f"out{len(folders)}{folders[1].name}").read_text()
        table, meaning = text.split("## What the columns mean")
        assert table.count("**") == 2 * bold
        assert ("**Bold**" in meaning) == bool(bold)


def test_the_adaptive_table_is_that_of_the_rows(tmp_path: Path) -> None:
    """Recomputed here; every image has evaluations and votes of its own."""
    rows = []
    for model, exit_name, factor in (("sween", "none", 3), ("sween+exact", "exact", 2)):
        for index in range(4):
            n = 1000 * (index + 1)
            rows.append(
                certificate(
                    index,
                    0.1 * (index + 1),
                    model=model,
                    exit=exit_name,
                    member_evaluations=factor * (n + 100) + 7 * index,
                    n=n,
                    samples=n + 100,
                    sampling="tolerance",
                )
            )
    config = {**OF_SWEEN, "exits": {"sween+exact": "exact"}, "tolerance": 0.05}
    report = write_report([write_run(tmp_path / "run", rows, **config)], tmp_path / "out")
    for line in _lines(report, "adaptive"):
        own = [row for row in rows if row.model == line["model"]]
        assert line["run"] == "run"
        assert line["exit"] == own[0].exit
        assert float(line["evaluations"]) == sum(row.member_evaluations for row in own) / 4
        each = sum(row.member_evaluations / row.samples for row in own) / 4
        assert float(line["evaluations_of_a_noisy_image"]) == pytest.approx(each)
        assert float(line["acr"]) == average_certified_radius(own)
        shown = f"{sum(row.member_evaluations for row in own) / 4:,.0f}"
        assert shown in report.read_text()
        assert shown in report.with_name("adaptive.tex").read_text()
