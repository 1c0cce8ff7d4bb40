"""Reports are whole or refused with one line, and take the place of earlier ones."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from scipy.io import savemat

from sween.errors import SweenError
from sween.report import LogFormat, write_report
from sween.report.figures import draw_curves
from sween.run_folder import to_toml, write_text
from tests.evaluation.certificates import certificate
from tests.report.folders import CANDIDATES, ensemble_rows, write_run
from tests.report.page.samples import read_page
from tests.report.test_more_tables import OUTCOMES, SETTINGS, _outcome, write_attacked

HEAD = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


def _train(folder: Path, metrics: str = '{"epoch": 0, "seconds": 1.5}', **changes: Any) -> Path:
    folder.mkdir(parents=True)
    config = {"arch": "digits-mlp", "dataset": "digits", "sigma": 0.5, "method": "gaussian"}
    write_text(folder / "config.toml", to_toml({**config, "seed": 0, **changes}))
    write_text(folder / "metrics.jsonl", metrics + "\n")
    return folder


def _refused(folders: list[Path], out: Path, **options: Any) -> str:
    with pytest.raises(SweenError) as caught:
        write_report(folders, out, **options)
    assert not out.exists(), "nothing half-written"
    (line,) = str(caught.value).splitlines()
    return line


def test_a_report_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows, more = ensemble_rows(), {"ensemble": "sween", "members": CANDIDATES, **SETTINGS}
    write_report([write_run(tmp_path / "first", rows, **more)], out)
    (out / "mine.txt").write_text("kept")
    write_report([_train(tmp_path / "trained")], out)
    assert {path.name for path in out.iterdir()} == {
        *("mine.txt", "report-files.json", "report.html", "report.md", "cost.csv", "cost.tex"),
    }
    assert read_page(out / "report.html")[1]["runs"] == []


def test_only_files_of_a_report_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report([_train(tmp_path / "trained")], out)
    listing = out / "report-files.json"
    content = json.loads(listing.read_text())
    names = ["../secret.md", 3, "own.txt", "folder.md", "old.png"]
    listing.write_text(json.dumps({**content, "files": [*content["files"], *names]}))
    (tmp_path / "secret.md").write_text("kept")
    (out / "own.txt").write_text("kept")
    (out / "folder.md").mkdir()
    (out / "old.png").write_text("goes")
    write_report([_train(tmp_path / "another")], out)
    assert (tmp_path / "secret.md").exists()
    assert (out / "own.txt").exists()
    assert (out / "folder.md").exists()
    assert not (out / "old.png").exists()
    assert "report.md" in json.loads(listing.read_text())["files"]


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"files": ["photo.png"], "mine": 1}'])
def test_a_listing_of_somebody_elses_is_left_alone(tmp_path: Path, content: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report-files.json").write_text(content)
    (out / "photo.png").write_text("kept")
    with pytest.raises(SweenError, match="the listing of an earlier report"):
        write_report([_train(tmp_path / "trained")], out)
    assert {path.name for path in out.iterdir()} == {"report-files.json", "photo.png"}
    assert (out / "report-files.json").read_text() == content


def test_names_that_make_the_same_file_are_refused(tmp_path: Path) -> None:
    rows = [certificate(0, 0.5, radius_cohen=0.5, radius_two_class=0.7)]
    runs = [write_run(tmp_path / name, rows, **SETTINGS) for name in ("x", "two-class-x")]
    assert "curve-two-class-x.png" in _refused(runs, tmp_path / "out")
    folders = [write_run(tmp_path / name, rows, **SETTINGS) for name in ("b-c", "c")]
    logs = [tmp_path / "a.tsv", tmp_path / "a-b.tsv"]
    for log in logs:
        log.write_text(f"{HEAD}0\t1\t1\t0.5\t1\t1.0\n")
    assert "beside-a-b-c.csv" in _refused([*folders, *logs], tmp_path / "out")


def test_logs_of_similar_names_stay_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)], **SETTINGS)
    logs = [tmp_path / "sigma_0.25", tmp_path / "sigma_0.50"]
    for log in logs:
        log.write_text(f"{HEAD}0\t1\t1\t0.5\t1\t1.0\n")
    write_report([run, *logs], tmp_path / "out")
    assert len(list((tmp_path / "out").glob("beside-*.csv"))) == 2
    (tmp_path / "log.tsv").write_text(f"{HEAD}0\t1\t1\t0.5\t1\t1.0\n")
    savemat(tmp_path / "log.mat", {"hard": [0.5]})
    both = [run, tmp_path / "log.tsv", tmp_path / "log.mat"]
    said = _refused(both, tmp_path / "double", log_format=LogFormat(start=0))
    assert "log 2 times" in said


def test_a_log_beside_a_two_class_run_is_judged_by_cohens_bound(tmp_path: Path) -> None:
    rows = [
        certificate(0, 0.9, bound="two-class", radius_cohen=0.25, radius_two_class=0.9),
        certificate(1, 0.9, bound="two-class", radius_cohen=0.0, radius_two_class=0.9),
    ]
    run = write_run(tmp_path / "run", rows, **{**SETTINGS, "bound": "two-class"})
    log = tmp_path / "log.tsv"
    log.write_text(f"{HEAD}0\t1\t1\t0.50\t1\t1.0\n1\t1\t-1\t0.0\t0\t1.0\n")
    text = write_report([run, log], tmp_path / "out").read_text()
    assert "| net | 50.0 | 50.0 |" in text
    (file,) = (tmp_path / "out").glob("beside-*.csv")
    assert [line.split(",")[2:4] for line in file.read_text().splitlines()[1:]] == [
        ["1", "0.25"],
        ["-1", "0.0"],
    ]


def test_each_figure_of_curves_is_of_its_own_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, str] = {}

    def draw(*arguments: Any, **options: Any) -> Any:
        drawn[options["subtitle"].rpartition(" · ")[2]] = options["radius"]
        return draw_curves(*arguments, **options)

    monkeypatch.setattr("sween.report.sections.draw_curves", draw)
    rows = [certificate(0, 0.5, radius_cohen=0.5, radius_two_class=0.7)]
    write_report([write_run(tmp_path / "run", rows, **SETTINGS)], tmp_path / "out")
    assert drawn == {"1 images": "radius", "two-class bound": "radius_two_class"}


def test_runs_are_named_where_there_are_several(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / name, [certificate(0, 0.5)], **SETTINGS) for name in ("one", "two")
    ]
    write_report(folders, tmp_path / "out")
    tex = (tmp_path / "out" / "table.tex").read_text()
    assert "one & 0.50 & net" in tex
    assert "two & 0.50 & net" in tex
    write_report(folders[:1], tmp_path / "alone")
    assert "one &" not in (tmp_path / "alone" / "table.tex").read_text()


def test_trainings_of_one_name_and_of_own_networks_are_listed(tmp_path: Path) -> None:
    folders = [
        _train(tmp_path / "a" / "net", sigma=0.25),
        _train(tmp_path / "b" / "net", seed=7, arch="mine:Net"),
        _train(tmp_path / "c" / "photos", dataset="image_folder"),
    ]
    text = write_report(folders, tmp_path / "out").read_text()
    assert "| net | 0.25 | digits-mlp | gaussian | 0 | " in text
    assert "| net | 0.50 | mine:Net | gaussian | 7 | - | - | 1 | 2 |" in text


@pytest.mark.parametrize(
    ("metrics", "changes", "said"),
    [
        ('{"epoch": 0}', {}, "metrics.jsonl, line 1"),
        ('{"epoch": 0, "seconds": "x"}', {}, "seconds"),
        ('{"epoch": 0, "seconds": true}', {}, "seconds"),
        ('{"seconds": 1}', {"sigma": "x"}, "config.toml: sigma"),
        ('{"seconds": 1}', {"method": 3}, "config.toml: method"),
    ],
)
def test_damaged_trainings(
    tmp_path: Path, metrics: str, changes: dict[str, Any], said: str
) -> None:
    assert said in _refused([_train(tmp_path / "net", metrics, **changes)], tmp_path / "out")


@pytest.mark.parametrize("weights", [[0.5, 0.5], ["a", "b", "c"], "x"])
def test_weights_that_are_not_the_candidates(tmp_path: Path, weights: Any) -> None:
    more = {"candidates": ["a", "b", "c"], "weights": weights}
    run = write_run(tmp_path / "run", [certificate(0, 0.5)], **SETTINGS, **more)
    assert "3 numbers, one a candidate" in _refused([run], tmp_path / "out")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"radius": 50.0}, "radius of net, index 0: expected at most"),
        ({"samples": 0}, "samples of net, index 0: expected at least 1"),
    ],
)
def test_certificates_that_no_votes_give(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    run = write_run(tmp_path / "run", [certificate(0, **fields)], **SETTINGS)
    assert said in _refused([run], tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eps": "x"}, "eps 'x'"),
        ({"alarm": 1}, "alarm 1"),
        ({"outcome": "fine"}, "got fine"),
    ],
)
def test_damaged_attacks(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    first = dataclasses.replace(OUTCOMES[0], **change)
    folder = write_attacked(tmp_path / "pgd", [first])
    assert said in _refused([folder], tmp_path / "out")


def test_a_page_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """Another label in an attack's row is seen by the page alone."""
    run = write_run(
        tmp_path / "run",
        [certificate(index, 0.5, model="sween") for index in range(10, 14)],
        model="sween",
        fingerprint="f" * 64,
        **SETTINGS,
    )
    outcomes = [_outcome(row.index, row.eps, row.outcome, label=2) for row in OUTCOMES]
    attack = write_attacked(tmp_path / "pgd", outcomes)
    assert "label of the pgd attack" in _refused([run, attack], tmp_path / "out")


def test_the_page_says_what_was_to_be_decided(tmp_path: Path) -> None:
    row = certificate(0, 0.5, sampling="decide", decisions={"0.5": True})
    run = write_run(tmp_path / "run", [row], **SETTINGS)
    report = write_report([run], tmp_path / "out")
    (note,) = read_page(report.with_name("report.html"))[1]["runs"][0]["notes"]
    assert note.startswith("Sampled to decide the radii 0.5")
    assert note in report.read_text()
