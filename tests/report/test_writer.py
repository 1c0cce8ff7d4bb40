"""The written report: its files, its sentences, its settings."""

import csv
import gzip
import re
from pathlib import Path

import pytest

from sween.evaluation import average_certified_radius
from sween.report import write_report
from tests.evaluation.certificates import AUTHORS_LOGS, certificate, read_authors_log
from tests.report.folders import CANDIDATES, OF_SWEEN, SETTINGS, ensemble_rows, write_run
from tests.report.page.samples import read_report

RESULTS = Path(__file__).parents[2] / "results"
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


def _lines(out: Path, name: str) -> list[dict[str, str]]:
    with (out / f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


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
    assert "Under the other bound: [PNG](curve-two-class-sigma-0.5.png)" in text
    order = [text.index(part) for part in ("| AVG |", "| UE |", "| sween |", "## Settings")]
    assert order == sorted(order) < [text.index("## What the columns mean")]
    models = [row["model"] for row in _lines(out, "table")]
    assert models == ["ant", "bee", "AVG", "UE", "sween"]


def test_the_lead_is_a_sentence_and_a_table(run: Path, tmp_path: Path) -> None:
    report = write_report([run], tmp_path / "report")
    (sentence,) = (line for line in report.read_text().splitlines() if line.startswith("On 4"))
    assert sentence.startswith(
        "On 4 images at indices 10..13, sween has an ACR of 0.650 and ant, its best candidate, one "
        "of 0.375. The difference of +0.275 has a 95% paired bootstrap interval of "
    )
    assert sentence.endswith(("which excludes zero.", "which includes zero."))
    assert read_report(report)["runs"][0]["lead"] == sentence
    (line,) = _lines(tmp_path / "report", "comparison")
    assert (line["model"], line["candidate"], line["indices"]) == ("sween", "ant", "10:14")
    assert float(line["difference"]) == pytest.approx(0.275)
    assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])
    assert "+0.275" in (tmp_path / "report" / "comparison.tex").read_text()


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
    assert {row["run"] for row in _lines(out, "table")} == {"sigma-0.5", "other run"}
    assert "other run & 1.00 & net" in (out / "table.tex").read_text()


def test_adaptive_sampling_may_use_a_different_n_for_each_image(tmp_path: Path) -> None:
    rows = [certificate(i, n=100 * (i + 1), sampling="tolerance") for i in range(3)]
    text = write_report([write_run(tmp_path / "run", rows)], tmp_path / "out").read_text()
    assert "| n | 100 to 300 |" in text


@pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")
def test_report_of_the_authors_logs(tmp_path: Path) -> None:
    members = ["resnet20", "resnet26", "resnet32"]
    logs = [row for name in [*members, "resnet110", "sween3"] for row in read_authors_log(name)]
    folder = write_run(tmp_path / "cifar10-0.50", logs, ensemble="sween3", members=members)
    text = write_report([folder], tmp_path / "report").read_text(encoding="utf-8")
    assert "On 1,000 images at indices 888..1887" in text
    assert "resnet32, its best candidate" in text
    assert "The difference of +0.074" in text
    assert "which excludes zero" in text
    assert "**0.631**" in text


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


def test_columns_are_explained_that_there_are(run: Path, tmp_path: Path) -> None:
    meaning = "## What the columns mean"
    whole = write_report([run], tmp_path / "whole").read_text(encoding="utf-8").split(meaning)[1]
    for word in (
        "**0.00, 0.25, ..., 2.00**",
        "**ACR**",
        "**two-class ACR**:",
        "**AVG**",
        "**Bold**",
    ):
        assert word in whole
    assert "Cohen ACR" not in whole
    plain = write_run(tmp_path / "plain", [certificate(0, bound="two-class")], dataset="toys")
    alone = write_report([plain], tmp_path / "alone").read_text(encoding="utf-8").split(meaning)[1]
    assert "**two-class ACR, Cohen ACR**:" in alone
    for word in ("AVG", "UE", "Bold"):
        assert word not in alone


def test_accuracies_have_intervals(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "report").read_text(encoding="utf-8")
    assert "With only 4 images, " in text
    assert "0.0 (0.0 to 60.3), 25.0 (0.6 to 80.6), 50.0 (6.7 to 93.3), 75.0 (19.4 to 99.4)." in text
    rows = {row["model"]: row for row in _lines(tmp_path / "report", "table")}
    ends = [float(rows["bee"][f"certified_accuracy_0.00_{end}"]) for end in ("low", "high")]
    assert ends == pytest.approx([0.19412, 0.99369], abs=1e-5)
    assert {rows[name]["certified_accuracy_0.00_low"] for name in ("AVG", "UE")} == {""}


def test_a_run_that_decides_or_is_unfinished_says_so(tmp_path: Path) -> None:
    row = certificate(0, 0.5, sampling="decide", decisions={"0.5": True})
    report = write_report([write_run(tmp_path / "run", [row], images=360)], tmp_path / "out")
    incomplete, decided = read_report(report)["runs"][0]["warnings"]
    assert incomplete == "Incomplete: 1 of the 360 requested images."
    assert decided.startswith("Sampled only to decide the radii 0.5")
    assert all(f"**{warning}**" in report.read_text() for warning in (incomplete, decided))


def test_every_format_has_the_numbers_of_the_records(run: Path, tmp_path: Path) -> None:
    """Recomputed here from the rows alone."""
    out = tmp_path / "report"
    write_report([run], out, radii=[0.0, 0.45])
    for model in ("ant", "bee", "sween"):
        own = [row for row in ensemble_rows() if row.model == model]
        right = [row.radius for row in own if row.prediction == row.label]
        accuracies = [100 * sum(radius >= at for radius in right) / len(own) for at in (0.0, 0.45)]
        acr = sum(right) / len(own)
        wanted = [f"{value:.1f}" for value in accuracies] + [f"{int(acr * 1000) / 1000:.3f}"]
        for file, separator in (("report.md", "|"), ("table.tex", "&")):
            (line,) = (
                line
                for line in (out / file).read_text().splitlines()
                if re.match(rf"\W*0\.50 [|&] {model} ", line)
            )
            cells = [re.sub(r"\\textbf\{|[*}]", "", cell).strip() for cell in line.split(separator)]
            assert [cell for cell in cells if cell][2:5] == wanted


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
    config = {**OF_SWEEN, "exits": {"sween+exact": "exact"}, "tolerance": 0.05}
    report = write_report([write_run(tmp_path / "run", rows, **config)], tmp_path / "out")
    for line in _lines(tmp_path / "out", "adaptive"):
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
    assert all(200 < float(row["seconds"]) < 400 for row in _lines(tmp_path / "report", "cost"))


def test_the_page_has_the_tables_of_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)], **SETTINGS)
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.45\t1\t1.0\n")
    report = write_report([run, log], tmp_path / "out", radii=[0.0, 0.48])
    (table,) = read_report(report)["tables"]
    assert table["title"].endswith(" compared with log")
    for row in table["rows"]:
        assert f"| {' | '.join(cell[0] for cell in row['cells'])} |" in report.read_text()
    assert table["notes"][-1] in report.read_text()
