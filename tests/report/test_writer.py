"""The written report: its files, its sentence, its settings, and what it refuses."""

import csv
import dataclasses
import gzip
from pathlib import Path
from typing import Any

import pytest

from sween.errors import BadInput, CheckpointError
from sween.report import write_report
from tests.evaluation.certificates import AUTHORS_LOGS, certificate, read_authors_log

from .folders import CANDIDATES, ensemble_rows, write_run

ENVIRONMENT = {"commit": "0123abc", "date": "2024-05-06T07:08:09+00:00"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(
        tmp_path / "sigma-0.5",
        ensemble_rows(seed=4),
        environment=ENVIRONMENT,
        dataset="digits",
        sigma=0.5,
        alpha=0.001,
        ensemble="sween",
        members=CANDIDATES,
    )


def test_files_and_table(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert write_report([run], out) == out / "report.md"
    kinds = ("curve-sigma-0.5", "curve-two-class-sigma-0.5", "noise-digits")
    names = ["comparison.csv", "comparison.tex"]
    names += [f"{kind}.{ending}" for kind in kinds for ending in ("png", "svg")]
    names += ["report-files.json", "report.html", "report.md", "table.csv", "table.tex"]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "![Radius-accuracy curves of sigma-0.5](curve-sigma-0.5.png)" in text
    assert "By the other bound: [PNG](curve-two-class-sigma-0.5.png)" in text
    order = [text.index(part) for part in ("| AVG |", "| UE |", "| sween |", "## Settings")]
    assert order == sorted(order) < [text.index("## What the columns mean")]
    with (out / "table.csv").open(encoding="utf-8") as stream:
        assert [row["model"] for row in csv.DictReader(stream)] == [
            "ant",
            "bee",
            "AVG",
            "UE",
            "sween",
        ]


def test_the_comparison_says_what_was_measured_where(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "report").read_text(encoding="utf-8")
    sentence = next(line for line in text.splitlines() if line.startswith("Measured on"))
    assert sentence.startswith(
        "Measured on 4 images at indices 10..13, the ACR of sween minus that of ant, its best "
        "candidate by ACR, is +0.275, with a 95% paired bootstrap interval of "
    )
    assert sentence.endswith(("which excludes zero.", "which includes zero."))


def test_settings_and_provenance(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "report").read_text(encoding="utf-8")
    for line in (
        "| dataset | digits |",
        "| sigma | 0.50 |",
        "| n0 | 100 |",
        "| n | 1,000 |",
        "| alpha | 0.001 |",
        "| bound | cohen |",
        "| seed | 4 |",
        "| images | 4 images at indices 10..13 |",
        "| commit | 0123abc |",
        "| date | 2024-05-06T07:08:09+00:00 |",
    ):
        assert line in text


def test_the_same_runs_give_the_same_report(run: Path, tmp_path: Path) -> None:
    write_report([run], tmp_path / "one")
    write_report([run], tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_several_runs_plain_rows_and_gaps(run: Path, tmp_path: Path) -> None:
    rows = [certificate(index, sigma=1.0, model="net") for index in (0, 20, 40)]
    other = write_run(tmp_path / "other run", rows)
    (other / "certificates.jsonl.gz").write_bytes(
        gzip.compress((other / "certificates.jsonl").read_bytes())
    )
    (other / "certificates.jsonl").unlink()
    out = tmp_path / "report"
    text = write_report([run, other], out, radii=[0.0, 0.125]).read_text(encoding="utf-8")
    assert "| σ | Model | 0.00 | 0.125 | ACR |" in text
    assert "| 1.00 | net | 100.0 | 100.0 | 0.500 |" in text
    assert "3 images at indices 0..40, every 20" in text
    assert "| commit | 0123abc | unknown |" in text
    assert "(curve-other%20run.png)" in text
    assert (out / "curve-other run.png").is_file()
    with (out / "table.csv").open(encoding="utf-8") as stream:
        assert {row["run"] for row in csv.DictReader(stream)} == {"sigma-0.5", "other run"}


@pytest.mark.parametrize(
    ("field", "value"), [("sigma", 0.25), ("alpha", 0.01), ("n", 9), ("bound", "two-class")]
)
def test_mixed_settings_are_refused(field: str, value: Any, tmp_path: Path) -> None:
    rows = [certificate(0), certificate(1, **{field: value})]
    folder = write_run(tmp_path / "mixed", rows)
    with pytest.raises(BadInput, match=rf"mixed: {field} of net, index 1: .* got {value}"):
        write_report([folder], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_adaptive_sampling_may_use_a_different_n_for_each_image(tmp_path: Path) -> None:
    rows = [certificate(i, n=100 * (i + 1), sampling="tolerance") for i in range(3)]
    text = write_report([write_run(tmp_path / "run", rows)], tmp_path / "out").read_text()
    assert "| n | 100..300 |" in text


def test_a_config_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [certificate(0)], sigma=0.25)
    with pytest.raises(BadInput, match=r"sigma of the certificates: expected 0.25"):
        write_report([folder], tmp_path / "report")


def test_folders_that_cannot_be_used_are_refused(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    with pytest.raises(BadInput, match="at least one run folder"):
        write_report([], out)
    with pytest.raises(BadInput, match=r"sigma-0\.5 2 times"):
        write_report([run, run], out)
    with pytest.raises(CheckpointError, match="no such folder"):
        write_report([tmp_path / "nowhere"], out)
    with pytest.raises(BadInput, match="empty: certificates: expected at least one"):
        write_report([write_run(tmp_path / "empty", [])], out)
    with pytest.raises(BadInput, match="a folder, got a file"):
        write_report([run], run / "config.toml")
    assert not out.exists()


@pytest.mark.parametrize(("key", "value"), [("ensemble", 3), ("members", "ant"), ("members", [1])])
def test_a_config_that_names_no_models_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ensemble_rows(), **{key: value})
    with pytest.raises(CheckpointError, match=f"config.toml: {key}"):
        write_report([folder], tmp_path / "report")


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_environment_is_refused(run: Path, content: str, tmp_path: Path) -> None:
    (run / "environment.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"environment\.json"):
        write_report([run], tmp_path / "report")


@pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")
def test_report_of_the_authors_logs(tmp_path: Path) -> None:
    members = ["resnet20", "resnet26", "resnet32"]
    logs = [row for name in [*members, "resnet110", "sween3"] for row in read_authors_log(name)]
    # The log's largest radii were rounded up, beyond what its votes can give.
    rows = [dataclasses.replace(row, radius=min(row.radius, 1.905)) for row in logs]
    folder = write_run(tmp_path / "cifar10-0.50", rows, ensemble="sween3", members=members)
    text = write_report([folder], tmp_path / "report").read_text(encoding="utf-8")
    assert "Measured on 1,000 images at indices 888..1887" in text
    assert "resnet32, its best candidate by ACR, is +0.074" in text
    assert "which excludes zero" in text
    assert "**0.631**" in text


def test_a_row_that_does_not_fit_its_checksum_is_not_reported(run: Path, tmp_path: Path) -> None:
    path = run / "certificates.jsonl"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"radius": 0', '"radius": 9', 1), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    with pytest.raises(BadInput, match=r"line \d+ \(index \d+\).*sween verify"):
        write_report([run], tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        ("17", "1 image could not be read and is not counted."),
        ("3,40:44", "5 images could not be read and are not counted."),
        ("0:999999999999999999", "999,999,999,999,999,999 images could not be read"),
    ],
)
def test_images_that_could_not_be_read_are_counted(
    run: Path, tmp_path: Path, skipped: str, said: str
) -> None:
    with (run / "config.toml").open("a") as config:
        config.write(f'skipped = "{skipped}"\n')
    text = write_report([run], tmp_path / "report").read_text(encoding="utf-8")
    assert f"\n**{said}" in text
    assert "Incomplete" not in text


@pytest.mark.parametrize("skipped", ['""', '"x"', "[3]", "3", '"5:2"'])
def test_a_config_that_skips_no_images_is_refused(run: Path, tmp_path: Path, skipped: str) -> None:
    with (run / "config.toml").open("a") as config:
        config.write(f"skipped = {skipped}\n")
    with pytest.raises(BadInput, match=r"skipped in config\.toml: .*got"):
        write_report([run], tmp_path / "report")


def test_columns_are_explained_that_there_are(run: Path, tmp_path: Path) -> None:
    meaning = "## What the columns mean"
    whole = write_report([run], tmp_path / "whole").read_text(encoding="utf-8").split(meaning)[1]
    for word in ("**ACR**", "**two-class ACR**:", "**AVG**", "**Bold**", "bootstrap intervals"):
        assert word in whole
    for word in ("resist", "Cohen ACR"):
        assert word not in whole
    plain = write_run(tmp_path / "plain", [certificate(0, bound="two-class")], dataset="toys")
    alone = write_report([plain], tmp_path / "alone").read_text(encoding="utf-8").split(meaning)[1]
    assert "**two-class ACR**, **Cohen ACR**:" in alone
    for word in ("AVG", "UE", "Bold", "resist", "bootstrap"):
        assert word not in alone


def test_intervals_of_few_images_are_named(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "report").read_text(encoding="utf-8")
    assert (
        "With only 4 images, the 95% confidence intervals (Clopper-Pearson) of these accuracies "
        "are wide: 0.0 has 0.0 to 60.3, 25.0 has 0.6 to 80.6, 50.0 has 6.7 to 93.3, 75.0 has 19.4 "
        "to 99.4.\n"
    ) in text
    with (tmp_path / "report" / "table.csv").open(encoding="utf-8") as stream:
        rows = {row["model"]: row for row in csv.DictReader(stream)}
    ends = [float(rows["bee"][f"certified_accuracy_0.00_{end}"]) for end in ("low", "high")]
    assert ends == pytest.approx([0.19412, 0.99369], abs=1e-5)
    assert {rows[name]["certified_accuracy_0.00_low"] for name in ("AVG", "UE")} == {""}
    many = write_run(tmp_path / "many", [certificate(index) for index in range(100)])
    text = write_report([many], tmp_path / "out").read_text(encoding="utf-8")
    assert "reach at most 3.7 percentage points to either side; table.csv has each." in text


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "part", ensemble_rows(), ensemble="sween", images=360)
    text = write_report([folder], tmp_path / "report").read_text(encoding="utf-8")
    assert "**Incomplete: " in text
    assert " of the 360 images asked for.**" in text
