"""A run compared with a published log: intervals from rounding, refusals, the authors' log."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from sween.errors import BadInput
from sween.evaluation import paired_bootstrap
from sween.records import ABSTAIN
from sween.report import LogFormat, load_run, write_report
from sween.report.log_comparison import LogComparison, compare_with_log, log_table
from sween.report.published_logs import CertificationLog, read_macer_log, read_tsv_log
from sween.report.tables import markdown_section
from tests.evaluation.certificates import AUTHORS_LOGS, abstained, certificate, wrong
from tests.report.folders import write_log, write_run

RESULTS = Path(__file__).parents[2] / "results" / "cifar10-sween3-gaussian-sigma0.50"
needs_logs = pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")

Image = tuple[int, int, float, float]
"""Index, prediction (the label is 1), and the ends of the radius."""


def log_of(*images: Image, name: str = "theirs") -> CertificationLog:
    index, prediction, low, high = (np.array(column) for column in zip(*images, strict=True))
    labels = np.ones_like(index)
    return CertificationLog(name, index, prediction == 1, low, high, labels, prediction)


OURS = [certificate(0, 0.5), certificate(1, 1.0), certificate(2, 0.3), wrong(3), abstained(4)]
IMAGES: list[Image] = [
    (0, 1, 0.45, 0.55),  # rounding hides which is larger
    (1, 1, 0.75, 0.85),  # ours is larger
    (4, 1, 0.25, 0.35),  # the log's is larger
    (3, 0, 3.0, 3.0),  # the same wrong answer
    (2, ABSTAIN, 0.0, 0.0),
]


def compared() -> LogComparison:
    return compare_with_log(OURS, log_of(*IMAGES), radii=[0.5, 0.0, 0.8])


def section(one: LogComparison) -> str:
    return markdown_section(log_table(one))


def test_every_number_by_hand() -> None:
    one = compared()
    assert (one.model.name, one.log.name, one.left_out) == ("net", "theirs", (0, 0))
    assert one.model.indices.tolist() == one.log.indices.tolist() == [0, 1, 2, 3, 4]
    assert one.radii == [0.0, 0.5, 0.8]
    log = log_of(*IMAGES[::-1])  # the order of rows changes nothing
    backwards = compare_with_log(OURS[::-1], log, radii=[0.0, 0.5, 0.8])
    assert (section(backwards), backwards.bootstrap) == (section(one), one.bootstrap)
    assert [one.model.accuracy(r).low for r in one.radii] == [0.6, 0.4, 0.2]
    assert [one.log.accuracy(r) for r in one.radii] == [(0.6, 0.6), (0.2, 0.4), (0.0, 0.2)]
    assert one.model.acr == pytest.approx((1.8 / 5, 1.8 / 5))
    assert one.log.acr == pytest.approx((1.45 / 5, 1.75 / 5))
    assert one.difference == pytest.approx((0.05 / 5, 0.35 / 5))
    assert one.larger == (2, 1)  # 1 and 2; 4
    assert one.same_prediction == 3  # 0, 1 and 3
    assert one.to_csv().splitlines()[3:] == [
        "2,1,1,0.3,-1,0,0.0,0.0",
        "3,1,0,0.9,0,0,3.0,3.0",
        "4,1,-1,0.0,1,1,0.25,0.35",
    ]


def test_the_section_by_hand() -> None:
    lines = section(compared()).splitlines()
    assert lines[:7] == [
        "## net compared with theirs",
        "",
        "| Model | 0.00 | 0.50 | 0.80 | ACR | larger on |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
        "| net | 60.0 | 40.0 | 20.0 | 0.360 | 2 |",
        "| theirs (log) | 60.0 | 20.0 to 40.0 | 0.0 to 20.0 | 0.290 to 0.350 | 1 |",
        "",
    ]
    (text,) = lines[7:]
    for part in ("On 5 common images (indices 0..4)", "is between +0.01", "includes zero", "60.0%"):
        assert part in text


def test_ends_are_rounded_outwards_and_zero_has_no_sign() -> None:
    log = log_of((0, 1, 0.49995, 0.6001), name="a|b")
    ours = [certificate(0, 0.6001, model="c|d")]
    text = section(compare_with_log(ours, log, radii=[0.0]))
    assert "| a\\|b (log) | 100.0 | 0.499 to 0.601 | 0 |" in text
    assert "| c\\|d | 100.0 | 0.600 | 0 |" in text
    assert "is between 0.000 and +0.101" in text


def test_different_images_are_refused_unless_allowed() -> None:
    log = log_of(*IMAGES[:3], (9, 1, 1.0, 1.0))
    with pytest.raises(BadInput, match=r"3 in common, 3 not: index 2 only in the certificates"):
        compare_with_log(OURS, log)
    one = compare_with_log(OURS, log, common_only=True, radii=[0.0])
    assert (one.model.indices.tolist(), one.left_out) == ([0, 1, 4], (2, 1))
    assert one.model.acr.low == pytest.approx(0.5)
    text = section(one)
    assert "Common images only: 2 of net and 1 of the log are left out." in text
    assert "left out" not in section(compared())
    with pytest.raises(BadInput, match="0 in common, 2 not: index 0 only in the certificates"):
        compare_with_log(OURS[:1], log_of((9, 1, 1.0, 1.0)), common_only=True)


def test_a_log_without_predictions(tmp_path: Path) -> None:
    savemat(tmp_path / "440.mat", {"hard": np.array([0.25, -1.0, 0.3, -1.0, 0.5])})
    one = compare_with_log(OURS, read_macer_log(tmp_path / "440.mat", start=0), radii=[0.25])
    assert one.same_prediction is None
    assert one.log.acr == pytest.approx((0.21, 0.21))
    assert one.larger == (2, 1)
    text = section(one)
    assert "| 440 (log) | 60.0 | 0.210 | 1 |" in text
    assert "minus that of the log is +0.150. The" in text
    assert "no predictions to compare" in text
    assert one.to_csv().splitlines()[1] == "0,1,1,0.5,,1,0.25,0.25"


reach = st.floats(0, 4, allow_subnormal=False)
pairs = st.tuples(reach, st.booleans(), reach, st.booleans())


@settings(max_examples=60)
@given(st.lists(pairs, min_size=2, max_size=12), st.sampled_from([".3", ".3f"]))
def test_intervals_contain_what_the_unrounded_log_gives(
    tmp_path_factory: pytest.TempPathFactory,
    images: list[tuple[float, bool, float, bool]],
    convention: str,
) -> None:
    ours, theirs, printed = [], [], []
    for index, (radius, right, other, other_right) in enumerate(images):
        ours.append(certificate(index, radius) if right else wrong(index, radius))
        theirs.append(certificate(index, other) if other_right else wrong(index, other))
        printed.append((index, int(other_right), f"{other:{convention}}"))
    path = write_log(tmp_path_factory.mktemp("log") / "log.tsv", *printed)
    log, radii = read_tsv_log(path), [0.0, 0.5, 1.0]
    one = compare_with_log(ours, log, radii=radii)
    exact = paired_bootstrap(ours, theirs)
    tiny = 1e-12
    assert one.bootstrap.low - tiny <= exact.low <= exact.high <= one.bootstrap.high + tiny
    assert one.difference.low - tiny <= exact.difference <= one.difference.high + tiny
    assert one.log.acr.low - tiny <= exact.second <= one.log.acr.high + tiny
    counted = [[row.radius_if_correct for row in rows] for rows in (ours, theirs)]
    gaps = [mine - other for mine, other in zip(*counted, strict=True)]
    assert one.larger[0] <= sum(gap > 0 for gap in gaps)
    assert one.larger[1] <= sum(gap < 0 for gap in gaps)
    for radius in radii:
        reached = sum(row.correct and row.radius >= radius for row in theirs) / len(theirs)
        assert one.log.accuracy(radius).low <= reached <= one.log.accuracy(radius).high


@needs_logs
def test_the_shipped_run_and_the_authors_log() -> None:
    run = load_run(RESULTS)
    assert run.ensemble is not None
    log, sharp_log = (
        read_tsv_log(AUTHORS_LOGS / "sween3.tsv", significant_digits=digits) for digits in (None, 3)
    )
    one, sharp = (compare_with_log(run.models[run.ensemble], own) for own in (log, sharp_log))
    assert one.model.indices.tolist() == list(range(888, 1888))
    with (AUTHORS_LOGS / "sween3.tsv").open(encoding="utf-8", newline="") as stream:
        theirs = {int(row["idx"]): row for row in csv.DictReader(stream, delimiter="\t")}
    printed = [float(row["radius"]) * (row["correct"] == "1") for row in theirs.values()]
    assert one.log.acr.low < sum(printed) / 1000 < one.log.acr.high
    assert one.log.acr.low < 0.631 < one.log.acr.high  # what the log is known for
    mine = {row.index: str(row.prediction) for row in run.models[run.ensemble]}
    assert one.same_prediction == sum(mine[i] == row["predict"] for i, row in theirs.items())
    # Known digits narrow every interval.
    assert one.log.acr.low < sharp.log.acr.low < 0.632 < sharp.log.acr.high < one.log.acr.high
    assert one.bootstrap.low < sharp.bootstrap.low < sharp.bootstrap.high < one.bootstrap.high
    assert one.larger[0] <= sharp.larger[0]


def test_a_log_needs_a_run_on_its_images(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)])
    log, mat = write_log(tmp_path / "log.tsv", (3, 1, "0.5")), tmp_path / "log.mat"
    for different in (False, True):
        with pytest.raises(BadInput, match="no run on them"):
            write_report([run, log], tmp_path / "report", different_images=different)
    mat.write_bytes(b"")
    with pytest.raises(BadInput, match=r"LogFormat\.start"):
        write_report([run, mat], tmp_path / "report")


def test_a_radius_beyond_what_n_allows_is_refused_in_a_report(tmp_path: Path) -> None:
    """The limits are the run's own, unless the log's are given."""
    run = write_run(tmp_path / "run", [certificate(3, 0.5)], n=100_000)
    log, out = write_log(tmp_path / "log.tsv", (3, 1, "2.5")), tmp_path / "report"
    with pytest.raises(BadInput, match=r"line 2: radius: expected at most 2\.\d+.*LogFormat.sigma"):
        write_report([run, log], out)
    assert not out.exists()
    with pytest.raises(BadInput, match=r"radius: expected at most 2\.287, .* got 2\.5"):
        write_report([run, log], out, log_format=LogFormat(sigma=0.6, n=100_000))
    with pytest.raises(BadInput, match="a run on the images of the log at its sigma, 1, got"):
        write_report([run, log], out, log_format=LogFormat(sigma=1.0))
    write_report([run, log], out, log_format=LogFormat(n=10**8))


def test_other_labels_are_refused() -> None:
    with pytest.raises(BadInput, match="label of index 0: expected 2 as in the certificates, got"):
        compare_with_log([certificate(0, label=2)], log_of((0, 1, 1.0, 1.0)))
