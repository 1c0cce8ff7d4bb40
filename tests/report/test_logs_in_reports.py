"""Published logs beside a run in a report."""

import csv
from pathlib import Path

import pytest

from sween.errors import BadInput
from sween.records import read_certificates
from sween.report import LogFormat, write_report
from tests.evaluation.certificates import certificate
from tests.report.folders import SETTINGS, write_run

ROOT = Path(__file__).parents[2]
LOGS = ROOT.parent / "shared" / "data" / "logs" / "sween-authors"


def test_a_log_needs_a_run_on_its_images(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)], **SETTINGS)
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n3\t1\t1\t0.5\t1\t1.0\n")
    with pytest.raises(BadInput, match="no run on them"):
        write_report([run, log], tmp_path / "report")
    with pytest.raises(BadInput, match="no run on them"):
        write_report([run, log], tmp_path / "report", different_images=True)
    mat = tmp_path / "log.mat"
    mat.write_bytes(b"")
    with pytest.raises(BadInput, match="--log-start"):
        write_report([run, mat], tmp_path / "report")


@pytest.mark.skipif(not LOGS.exists(), reason="the authors' logs are not here")
def test_our_run_beside_the_authors_log(tmp_path: Path) -> None:
    run = ROOT / "results" / "cifar10-sween3-gaussian-sigma0.50"
    text = write_report([run, LOGS / "sween3.tsv"], tmp_path / "report").read_text()
    assert "SWEEN-3 beside sween3" in text
    assert "1,000 images at indices 888..1887" in text
    file = tmp_path / "report" / "beside-sween3-cifar10-sween3-gaussian-sigma0.50.csv"
    with file.open() as stream:
        found = list(csv.DictReader(stream))
    assert [int(row["index"]) for row in found] == list(range(888, 1888))
    ours = {row.index: row for row in read_certificates(run) if row.model == "SWEEN-3"}
    lines = (LOGS / "sween3.tsv").read_text().splitlines()[1:]
    theirs = {int(line.split("\t")[0]): line.split("\t") for line in lines}
    further = 0
    for row in found:
        own, log = ours[int(row["index"])], theirs[int(row["index"])]
        assert float(row["radius"]) == own.radius_cohen
        assert (int(row["prediction"]), int(row["log_prediction"])) == (
            own.prediction,
            int(log[2]),
        )
        assert float(row["log_radius_low"]) <= float(log[3]) <= float(row["log_radius_high"])
        right = own.prediction == own.label
        counted = float(row["log_radius_high"]) if row["log_correct"] == "1" else 0.0
        further += right and float(row["radius"]) > counted
    assert f"SWEEN-3 certifies {further} images further than the log" in text


@pytest.mark.skipif(not LOGS.exists(), reason="the authors' logs are not here")
def test_common_images_of_a_log_where_one_asks_for_them(tmp_path: Path) -> None:
    run = ROOT / "results" / "cifar10-sween3-gaussian-sigma0.50"
    log = LOGS.parent / "locuslab" / "cifar10_resnet110_sigma_0.50.tsv"
    with pytest.raises(BadInput, match="--different-images"):
        write_report([run, log], tmp_path / "report")
    write_report([run, log], tmp_path / "report", different_images=True)
    (file,) = (tmp_path / "report").glob("beside-*.csv")
    with file.open() as stream:
        indices = [int(row["index"]) for row in csv.DictReader(stream)]
    assert indices == list(range(900, 1888, 20))


def test_a_radius_beyond_what_n_allows_is_refused_in_a_report(tmp_path: Path) -> None:
    """The limits are the run's own, unless the log's are given."""
    run = write_run(tmp_path / "run", [certificate(3, 0.5)], **SETTINGS, n=100_000)
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n3\t1\t1\t2.5\t1\t1.0\n")
    with pytest.raises(BadInput, match=r"line 2: radius: expected at most 2\.\d+.*--log-sigma"):
        write_report([run, log], tmp_path / "report")
    assert not (tmp_path / "report").exists()
    strict = LogFormat(sigma=0.6, n=100_000)
    with pytest.raises(BadInput, match=r"radius: expected at most 2\.287, .* got 2\.5"):
        write_report([run, log], tmp_path / "report", log_format=strict)
    with pytest.raises(BadInput, match="a run on the images of the log at its sigma, 1, got"):
        write_report([run, log], tmp_path / "report", log_format=LogFormat(sigma=1.0))
    write_report([run, log], tmp_path / "report", log_format=LogFormat(n=10**8))
