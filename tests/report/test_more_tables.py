"""Tables of attacks, exits and costs; runs on different images."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sween.attack import AttackOutcome
from sween.errors import BadInput
from sween.evaluation import certified_accuracy
from sween.records import RowWriter
from sween.report import write_report
from sween.report.attacked import load_attacked
from sween.report.grid import Cell, Table, latex, mark_best, markdown, to_csv
from sween.run_folder import to_toml, write_text
from sween.runs.attack_outcome import to_row
from tests.evaluation.certificates import certificate
from tests.report.folders import CANDIDATES, ensemble_rows, write_run
from tests.report.page.samples import read_page

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {"dataset": "digits", "sigma": 0.5, "alpha": 0.001}


def _outcome(index: int, eps: float, outcome: str, **fields: object) -> AttackOutcome:
    values = {
        "index": index,
        "label": 1,
        "attack": "pgd",
        "eps": eps,
        "outcome": outcome,
        "clean_prediction": 1,
        "prediction": 1,
        "counts": (1, 99),
        "distance": eps / 2,
        "n": 100,
        "alpha": 0.001,
        "tries": 1,
        "judge_alpha": 0.001,
        "judge_seed": 0,
        "samples": 8,
        "gradients": "plain",
        "surrogate_rows": 4096,
        "steps": 5,
        "sigma": 0.5,
        "seed": 0,
        "model": "sween",
    }
    return AttackOutcome(**{**values, **fields})  # type: ignore[arg-type]


def write_attacked(folder: Path, outcomes: Sequence[AttackOutcome], **config: object) -> Path:
    folder.mkdir(parents=True)
    settings = {
        "model": "sween",
        "fingerprint": "f" * 64,
        "sigma": 0.5,
        "attack": "pgd",
        "n": 100,
        "alpha": 0.001,
        "seed": 0,
        "samples": 8,
    }
    write_text(folder / "config.toml", to_toml({**settings, **config}))
    with RowWriter(folder / "attacks.jsonl") as writer:
        writer.append(to_row(row) for row in outcomes)
    return folder


OUTCOMES = [
    *(_outcome(10, eps, "robust") for eps in (0.25, 0.75)),
    *(_outcome(11, eps, "abstained", prediction=-1) for eps in (0.25, 0.75)),
    _outcome(12, 0.25, "robust"),
    _outcome(12, 0.75, "broken", prediction=0),
    *(_outcome(13, eps, "declined", clean_prediction=-1) for eps in (0.25, 0.75)),
]


def test_a_table_in_three_formats() -> None:
    rows = [[Cell("a|b", "a|b"), Cell("0.5", 0.51, best=True)], [Cell("50%_x", "y"), Cell("-")]]
    table = Table("name", ["Model", "ε"], ["model", "eps"], rows, blocks=[0, 1])
    assert (
        markdown(table) == "| Model | ε |\n| :--- | ---: |\n| a\\|b | **0.5** |\n| 50%\\_x | - |\n"
    )
    assert latex(table).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"Model & $\varepsilon$ \\",
        r"\midrule",
        r"a\textbar{}b & \textbf{0.5} \\",
        r"\midrule",
        r"50\%\_x & - \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["model", "eps"],
        ["a|b", "0.51"],
        ["y", ""],
    ]
    with pytest.raises(ValueError, match="different lengths"):
        Table("name", ["one"], ["one", "two"], [])


def test_latex_and_markdown_have_the_numbers_of_the_records(tmp_path: Path) -> None:
    """Recomputed here from the rows alone."""
    rows = ensemble_rows()
    run = write_run(tmp_path / "run", rows, ensemble="sween", members=CANDIDATES, **SETTINGS)
    out = tmp_path / "report"
    write_report([run], out, radii=[0.0, 0.45])
    for model in ("ant", "bee", "sween"):
        own = [row for row in rows if row.model == model]
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
            cells = [cell for cell in cells if cell]
            assert cells[2:5] == wanted


def test_the_lead_over_the_best_candidate_is_a_table_too(tmp_path: Path) -> None:
    rows = ensemble_rows()
    run = write_run(
        tmp_path / "run", rows, ensemble="sween", members=CANDIDATES, model="sween", **SETTINGS
    )
    write_report([run], tmp_path / "report")
    with (tmp_path / "report" / "comparison.csv").open() as stream:
        (line,) = csv.DictReader(stream)
    acr = {
        model: sum(r.radius for r in rows if r.model == model and r.prediction == r.label)
        / sum(r.model == model for r in rows)
        for model in ("sween", *CANDIDATES)
    }
    best = max(CANDIDATES, key=lambda name: acr[name])
    assert (line["model"], line["candidate"], line["indices"]) == ("sween", best, "10:14")
    assert float(line["difference"]) == pytest.approx(acr["sween"] - acr[best])
    assert float(line["low"]) <= float(line["difference"]) <= float(line["high"])
    tex = (tmp_path / "report" / "comparison.tex").read_text()
    assert f"{acr['sween'] - acr[best]:+.3f}" in tex


def test_the_best_of_each_group_is_bold() -> None:
    def row(name: str, text: str, value: float | None) -> list[Cell]:
        return [Cell(name, name), Cell(text, value)]

    rows = [row("a", "1.0", 1.0), row("b", "2.0", 2.01), row("c", "2.0", 2.0), row("d", "-", None)]
    groups = [0, 0, 0, 0]
    best = [cells[1].best for cells in mark_best(rows, 1, among=groups)]
    assert best == [False, True, True, False]
    assert next(c[1].best for c in mark_best(rows, 1, among=groups, lowest=True))
    alone = mark_best(rows, 1, among=[0, 1, 2, 3])
    assert not any(cells[1].best for cells in alone)


def test_attacks_stand_beside_certificates(tmp_path: Path) -> None:
    rows = ensemble_rows()
    run = write_run(
        tmp_path / "run",
        rows,
        ensemble="sween",
        model="sween",
        fingerprint="f" * 64,
        members=CANDIDATES,
        **SETTINGS,
    )
    folder = write_attacked(tmp_path / "attacks", OUTCOMES)
    text = write_report([run, folder], tmp_path / "report").read_text()
    own = [row for row in rows if row.model == "sween"]
    certified = [100 * value for value in certified_accuracy(own, [0.0, 0.25, 0.75])]
    for eps, known, resist, broken, abstained in (
        (0.0, certified[0], 75.0, 0.0, 0.0),
        (0.25, certified[1], 75.0, 0.0, 25.0),
        (0.75, certified[2], 50.0, 25.0, 25.0),
    ):
        shares = (f"{share:.1f}" for share in (known, resist, broken, abstained, 0, 25))
        cells = (f"{eps:.2f}", *shares, str(int(eps == 0.75)), "4", "10:14", "8", "5", "100")
        assert f"| attacks | 0.50 | sween | pgd | {' | '.join(cells)} |" in text
    with (tmp_path / "report" / "attacks.csv").open() as stream:
        assert [float(row["empirical_accuracy"]) for row in csv.DictReader(stream)] == [
            0.75,
            0.75,
            0.5,
        ]
    assert "pgd & 0.75 & " in (tmp_path / "report" / "attacks.tex").read_text()
    alone = write_report([folder], tmp_path / "alone").read_text()
    assert "| pgd | 0.25 | - | 75.0 |" in alone
    assert alone.count("| 25.0 | - |") == 3  # no certificates, no word on alarms


def test_a_break_inside_a_certified_radius_shows_whoever_certified(tmp_path: Path) -> None:
    """The attack knew of no certificates; the report sets it beside some."""
    rows = [certificate(index, 0.6, model="sween") for index in range(10, 14)]
    run = write_run(tmp_path / "run", rows, model="sween", fingerprint="f" * 64, **SETTINGS)
    table = write_report([run, write_attacked(tmp_path / "attacks", OUTCOMES)], tmp_path / "out")
    (line,) = (line for line in table.read_text().splitlines() if "| pgd | 0.75 |" in line)
    assert line.endswith("| 1 | 4 | 10:14 | 8 | 5 | 100 |")
    soft = write_run(
        tmp_path / "soft", rows, model="sween", fingerprint="f" * 64, votes="soft", **SETTINGS
    )
    text = write_report([soft, tmp_path / "attacks"], tmp_path / "other").read_text()
    assert "| pgd | 0.75 | - |" in text  # another classifier's certificates


def test_an_attack_on_images_without_certificates_claims_no_certified_accuracy(
    tmp_path: Path,
) -> None:
    rows = [certificate(index, 0.6, model="sween") for index in range(10, 13)]  # but not 13
    run = write_run(tmp_path / "run", rows, model="sween", fingerprint="f" * 64, **SETTINGS)
    text = write_report([run, write_attacked(tmp_path / "attacks", OUTCOMES)], tmp_path / "out")
    assert "| pgd | 0.75 | - |" in text.read_text()


def test_attack_numbers_have_intervals_and_say_what_was_left_out(tmp_path: Path) -> None:
    """75% of 4 images: from 19.4% to 99.4%; 50%: from 6.7% to 93.3%."""
    folder = write_attacked(tmp_path / "pgd-run", OUTCOMES, skipped="7")
    report = write_report([folder], tmp_path / "out")
    said = (
        "With 4 images, the 95% confidence intervals (Clopper-Pearson) of certified % and resist % "
        "reach at most 55.6 percentage points to either side.",
        "pgd-run: 1 image could not be read and is not counted.",
    )
    (table,) = read_page(report.with_name("report.html"))[1]["tables"]
    assert "Resist % counts images" in table["notes"][0]
    assert table["notes"][1:] == list(said)
    assert all(f"\n{line}\n" in report.read_text() for line in said)


def _attacks_of_page(report: Path) -> list[dict[str, Any]]:
    """The attacks that a report's page is given, of its first run."""
    page = report.with_name("report.html").read_text()
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    attacks: list[dict[str, Any]] = json.loads(found[1])["runs"][0]["attacks"]
    return attacks


def test_the_page_raises_the_same_alarm(tmp_path: Path) -> None:
    rows = [certificate(index, 0.6, model="sween") for index in range(10, 14)]
    run = write_run(tmp_path / "run", rows, model="sween", fingerprint="f" * 64, **SETTINGS)
    report = write_report([run, write_attacked(tmp_path / "attacks", OUTCOMES)], tmp_path / "out")
    assert [point["alarms"] for point in _attacks_of_page(report)] == [0, 0, 1]
    page = report.with_name("report.html").read_text()
    assert '"Attack attacks"' in page  # how it was made stands in the provenance
    assert '["samples", "8"]' in page or '["samples","8"]' in page


def test_attacks_of_one_name_stay_apart_in_the_page(tmp_path: Path) -> None:
    rows = [certificate(index, 0.1, model="sween") for index in range(10, 14)]
    run = write_run(tmp_path / "run", rows, model="sween", fingerprint="f" * 64, **SETTINGS)
    fewer = [row for row in OUTCOMES if row.index < 12]
    folders = [
        write_attacked(tmp_path / "all", OUTCOMES),
        write_attacked(tmp_path / "some", fewer),
    ]
    points = _attacks_of_page(write_report([run, *folders], tmp_path / "out"))
    assert [(point["attack"], point["count"]) for point in points] == [
        *[("pgd (all)", 4)] * 3,
        *[("pgd (some)", 2)] * 3,
    ]


def test_an_attack_that_is_not_finished_says_so(tmp_path: Path) -> None:
    folder = write_attacked(tmp_path / "attacks", OUTCOMES, images=9)
    assert "| - | 4 of 9 |" in write_report([folder], tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("outcomes", "config", "message"),
    [
        ([], {}, "rows of attacks"),
        (OUTCOMES[:-1], {}, r"radius 0\.75: expected every image once"),
        ([*OUTCOMES, OUTCOMES[0]], {}, r"radius 0\.25: expected every image once"),
        ([dataclasses.replace(OUTCOMES[0], sigma=0.25), *OUTCOMES[1:]], {}, "sigma"),
        (OUTCOMES, {"n": 99}, "n: expected the same in every row and in the config"),
    ],
)
def test_attack_folders_that_do_not_hold_together(
    tmp_path: Path, outcomes: list[AttackOutcome], config: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        load_attacked(write_attacked(tmp_path / "attacks", outcomes, **config))


def test_runs_on_different_images_are_not_set_side_by_side(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [certificate(0, 0.5)], **SETTINGS)
    two = write_run(tmp_path / "two", [certificate(1, 0.5)], **SETTINGS)
    with pytest.raises(BadInput, match="--different-images"):
        write_report([one, two], tmp_path / "report")
    assert not (tmp_path / "report").exists()
    assert "two" in write_report([one, two], tmp_path / "report", different_images=True).read_text()


def test_runs_on_other_pixels_are_not_set_side_by_side(tmp_path: Path) -> None:
    """Every folder of images has the same name; what was certified is known by its pixels."""
    folder = {**SETTINGS, "dataset": "image_folder"}
    one = write_run(tmp_path / "one", [certificate(0, 0.5)], data="1" * 64, **folder)
    two = write_run(tmp_path / "two", [certificate(0, 0.5)], data="2" * 64, **folder)
    with pytest.raises(BadInput, match="--different-images"):
        write_report([one, two], tmp_path / "report")


def test_costs_are_those_of_the_paper(tmp_path: Path) -> None:
    training = ROOT / "results" / "cifar10-sween3-gaussian-sigma0.50" / "training"
    folders = sorted(training.iterdir())
    text = write_report(folders, tmp_path / "report").read_text()
    assert re.search(
        r"\| 0\.50 \| resnet20 \| gaussian \| 0 \| 27\d,\d{3} \| 4\d,\d{3},\d{3} \| 200 \|", text
    )
    with (tmp_path / "report" / "cost.csv").open() as stream:
        seconds = [float(row["seconds"]) for row in csv.DictReader(stream)]
    assert all(200 < value < 400 for value in seconds)
