"""The written report: its files, its sentences, its settings."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from sween.evaluation import average_certified_radius
from sween.report import write_report
from tests.evaluation.certificates import certificate
from tests.report.folders import WITH_MEMBERS, ensemble_rows, read_csv, write_run
from tests.report.page.samples import read_report

RESULTS = Path(__file__).parents[2] / "results"
ENVIRONMENT = {"commit": "0123abc", "date": "2024-05-06T07:08:09+00:00"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(
        tmp_path / "sigma-0.5",
        ensemble_rows(seed=4),
        environment=ENVIRONMENT,
        **WITH_MEMBERS,
    )


def test_files_and_table(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert write_report([run], out) == out / "report.md"
    kinds = [f"{kind}-sigma-0.5" for kind in ("curve", "curve-two-class", "weights")]
    kinds += ["noise-digits"]
    names = ["comparison.csv", "comparison.tex"]
    names += [f"{kind}.{ending}" for kind in kinds for ending in ("png", "svg")]
    names += ["report-files.json", "report.html", "report.md", "table.csv", "table.tex"]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "![Radius-accuracy curves of sigma-0.5](curve-sigma-0.5.png)" in text
    assert "Under the other bound: [PNG](curve-two-class-sigma-0.5.png)" in text
    order = [text.index(part) for part in ("| AVG |", "| UE |", "| sween |", "## Settings")]
    assert order == sorted(order) < [text.index("## What the columns mean")]
    models = [row["model"] for row in read_csv(out / "report.md", "table")]
    assert models == ["ant", "bee", "AVG", "UE", "sween"]


def test_the_lead_is_a_sentence_and_a_table(run: Path, tmp_path: Path) -> None:
    report = write_report([run], tmp_path / "report")
    (sentence,) = (line for line in report.read_text().splitlines() if line.startswith("On 4"))
    assert sentence.startswith(
        "On 4 images at indices 10..13, the ACR of sween is 0.650 and that of its best candidate, "
        "ant, is 0.375. The 95% paired bootstrap interval of the difference, +0.275, is "
    )
    assert sentence.endswith(("which excludes zero.", "which includes zero."))
    assert read_report(report)["runs"][0]["lead"] == sentence
    (line,) = read_csv(tmp_path / "report" / "report.md", "comparison")
    assert (line["model"], line["candidate"], line["indices"]) == ("sween", "ant", "10:14")
    assert float(line["difference"]) == pytest.approx(0.275)
    assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])
    assert "+0.275" in (tmp_path / "report" / "comparison.tex").read_text()


def test_settings_and_provenance(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "report").read_text(encoding="utf-8")
    settings = {"dataset": "digits", "sigma": "0.50", "n": "1,000", "alpha": "0.001", "seed": "4"}
    for name, value in (settings | ENVIRONMENT).items():
        assert f"| {name} | {value} |" in text
    assert "| images | 4 images at indices 10..13 |" in text


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
    assert {row["run"] for row in read_csv(out / "report.md", "table")} == {
        "sigma-0.5",
        "other run",
    }
    assert "other run & 1.00 & net" in (out / "table.tex").read_text()


def test_only_columns_of_the_report_are_explained(run: Path, tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", [certificate(0, bound="two-class")], dataset="toys")
    whole, alone = (
        write_report([own], tmp_path / f"report-{own.name}")
        .read_text(encoding="utf-8")
        .partition("## What the columns mean")[2]
        for own in (run, plain)
    )
    for word in ("0.00, 0.25, ..., 2.00**", "**ACR**", "**two-class ACR**", "**AVG**", "**Bold**"):
        assert word in whole
    assert "Cohen ACR" not in whole
    assert "**two-class ACR, Cohen ACR**:" in alone
    for word in ("AVG", "UE", "Bold"):
        assert word not in alone


def test_a_run_that_decides_or_is_unfinished_says_so(tmp_path: Path) -> None:
    row = certificate(0, 0.5, sampling="decide", decisions={"0.5": True})
    more: dict[str, Any] = {"indices": "0:360", "images": 360, "sampling": "decide"}
    report = write_report(
        [write_run(tmp_path / "run", [row], radii=[0.5], **more)], tmp_path / "out"
    )
    incomplete, decided = read_report(report)["runs"][0]["warnings"]
    assert incomplete == "Incomplete: 1 of the 360 requested images."
    assert decided.startswith("Sampled only to decide the radii 0.5")
    assert all(f"**{warning}**" in report.read_text() for warning in (incomplete, decided))


def test_the_table_of_early_exits(tmp_path: Path) -> None:
    """Recomputed here; every image has its own evaluations and votes."""
    rows = [
        certificate(
            index,
            0.1 * (index + 1),
            model=model,
            exit=exit_name,
            member_evaluations=factor * (1000 * index + 1100) + 7 * index,
            n=1000 * (index + 1),
            samples=1000 * index + 1100,
            sampling="tolerance",
        )
        for model, exit_name, factor in (("sween", "none", 3), ("sween+exact", "exact", 2))
        for index in range(4)
    ]
    config = {"exits": {"sween+exact": "exact"}}
    report = write_report([write_run(tmp_path / "run", rows, **config)], tmp_path / "out")
    for line in read_csv(tmp_path / "out" / "report.md", "adaptive"):
        own = [row for row in rows if row.model == line["model"]]
        assert (line["run"], line["exit"]) == ("run", own[0].exit)
        assert float(line["evaluations"]) == sum(row.member_evaluations for row in own) / 4
        each = sum(row.member_evaluations / row.samples for row in own) / 4
        assert float(line["evaluations_of_a_noisy_image"]) == pytest.approx(each)
        assert float(line["acr"]) == average_certified_radius(own)
        shown = f"{sum(row.member_evaluations for row in own) / 4:,.0f}"
        assert shown in report.read_text()
        assert shown in report.with_name("adaptive.tex").read_text()


def test_costs_are_those_of_the_paper(tmp_path: Path) -> None:
    folders = sorted((RESULTS / "cifar10-sween3-gaussian-sigma0.50" / "training").iterdir())
    text = write_report(folders, tmp_path / "report").read_text()
    assert re.search(
        r"\| 0\.50 \| resnet20 \| gaussian \| 0 \| 27\d,\d{3} \| 4\d,\d{3},\d{3} \| 200 \|", text
    )
    assert all(
        200 < float(row["seconds"]) < 400
        for row in read_csv(tmp_path / "report" / "report.md", "cost")
    )
