"""A run beside a published log: intervals from rounding, refusals, and the paper's authors' log."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from sween.errors import BadInput
from sween.evaluation import paired_bootstrap
from sween.records import ABSTAIN, Certificate
from sween.report import load_run
from sween.report.beside import Interval, LogComparison, compare_with_log
from sween.report.beside_text import comparison_section
from sween.report.classic import ClassicLog, ClassicRow, read_classic_log
from sween.report.macer_mat import read_macer_mat
from tests.evaluation.certificates import AUTHORS_LOGS, abstained, certificate, wrong

RESULTS = Path(__file__).resolve().parents[2] / "results" / "cifar10-sween3-gaussian-sigma0.50"


def right(index: int, low: float, high: float | None = None) -> ClassicRow:
    return ClassicRow(
        index=index,
        label=1,
        prediction=1,
        correct=True,
        low=low,
        high=low if high is None else high,
    )


def not_right(index: int, prediction: int = ABSTAIN) -> ClassicRow:
    reach = 0.0 if prediction == ABSTAIN else 3.0
    return ClassicRow(
        index=index, label=1, prediction=prediction, correct=False, low=reach, high=reach
    )


OURS = [certificate(0, 0.5), certificate(1, 1.0), certificate(2, 0.3), wrong(3), abstained(4)]
LOG = ClassicLog(
    "theirs",
    [
        right(0, 0.45, 0.55),  # rounding hides which is further
        right(1, 0.75, 0.85),  # ours is further
        right(4, 0.25, 0.35),  # the log is further
        not_right(3, prediction=0),  # the same wrong answer
        not_right(2),
    ],
)


def compared() -> LogComparison:
    return compare_with_log(OURS, LOG, radii=[0.5, 0.0, 0.8], resamples=200)


def test_every_number_by_hand() -> None:
    one = compared()
    assert (one.model, one.log, one.indices, one.count) == ("net", "theirs", (0, 1, 2, 3, 4), 5)
    assert (one.only_model, one.only_log) == (0, 0)
    assert one.radii == (0.0, 0.5, 0.8)
    assert one.accuracies == (0.6, 0.4, 0.2)
    assert one.log_accuracies == ((0.6, 0.6), (0.2, 0.4), (0.0, 0.2))
    assert one.acr == pytest.approx(1.8 / 5)
    assert one.log_acr == pytest.approx((1.45 / 5, 1.75 / 5))
    assert one.difference == pytest.approx((0.05 / 5, 0.35 / 5))
    assert (one.model_further, one.log_further) == (2, 1)  # 1 and 2; 4
    assert one.same_prediction == 3  # 0, 1 and 3


def test_the_order_of_rows_changes_nothing() -> None:
    backwards = compare_with_log(
        OURS[::-1], ClassicLog("theirs", LOG.rows[::-1]), radii=[0.0, 0.5, 0.8], resamples=200
    )
    assert backwards == compared()


def test_the_section_by_hand() -> None:
    lines = comparison_section(compared()).splitlines()
    assert lines[:7] == [
        "### net beside theirs",
        "",
        "| Model | 0.00 | 0.50 | 0.80 | ACR | further on |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
        "| net | 60.0 | 40.0 | 20.0 | 0.360 | 2 |",
        "| theirs (log) | 60.0 | 20.0 to 40.0 | 0.0 to 20.0 | 0.290 to 0.350 | 1 |",
        "",
    ]
    (text,) = lines[7:]
    assert text.startswith(
        "On 5 common images (indices 0..4) the ACR of net minus that of the log is between +0.01"
    )
    assert "with a 95% paired bootstrap interval, rounding included, from -0." in text
    assert "which includes zero." in text
    assert text.endswith(
        "net certifies 2 images further than the log, the log 1, by more than the rounding; they "
        "give the same answer on 3 (60.0%). The noise level of net is 0.50; that of the log is not "
        "in it."
    )


def test_ends_are_rounded_outwards_and_zero_has_no_sign() -> None:
    log = ClassicLog("a|b", [right(0, 0.49995, 0.6001)])
    section = comparison_section(
        compare_with_log([certificate(0, 0.6001, model="c|d")], log, radii=[0.0])
    )
    assert "| a\\|b (log) | 100.0 | 0.499 to 0.601 | 0 |" in section
    assert "| c\\|d | 100.0 | 0.600 | 0 |" in section
    assert "is between 0.000 and +0.101" in section


def test_different_images_are_refused_unless_allowed() -> None:
    shorter = ClassicLog("theirs", [*LOG.rows[:3], right(9, 1.0)])
    with pytest.raises(
        BadInput, match=r"the same in both, got 3 in common, 3 not: index 2 only in the certificat"
    ) as caught:
        compare_with_log(OURS, shorter)
    assert "common_only=True" in str(caught.value)
    one = compare_with_log(OURS, shorter, common_only=True, radii=[0.0])
    assert one.indices == (0, 1, 4)
    assert (one.only_model, one.only_log) == (2, 1)
    assert one.acr == pytest.approx(0.5)
    section = comparison_section(one)
    assert "**Common images only: 2 of net and 1 of the log are left out.**" in section
    assert "left out" not in comparison_section(compared())


@pytest.mark.parametrize("allowed", [False, True])
def test_no_common_images_are_always_refused(allowed: bool) -> None:
    with pytest.raises(BadInput, match="0 in common, 2 not: index 0 only in the certificates"):
        compare_with_log(OURS[:1], ClassicLog("theirs", [right(9, 1.0)]), common_only=allowed)
    with pytest.raises(BadInput, match="0 in common, 1 not: index 9 only in the log"):
        compare_with_log([], ClassicLog("theirs", [right(9, 1.0)]), common_only=allowed)


def test_another_data_set_is_refused() -> None:
    with pytest.raises(BadInput, match="label of index 0: expected 2 as in the certificates, got"):
        compare_with_log([certificate(0, label=2)], ClassicLog("theirs", [right(0, 1.0)]))


def test_images_without_labels_and_rows_of_two_models_are_refused() -> None:
    log = ClassicLog("theirs", [right(0, 1.0)])
    with pytest.raises(BadInput, match="label of index 0: expected a class for every image"):
        compare_with_log([certificate(0, label=None)], log)
    with pytest.raises(BadInput, match="index 0 twice"):
        compare_with_log([certificate(0), certificate(0, model="bee")], log)
    with pytest.raises(BadInput, match="radii"):
        compare_with_log([certificate(0)], log, radii=[])


def test_the_bound_can_be_chosen() -> None:
    """By Cohen's bound image 1 abstains, and the log does; by the one asked for it is right."""
    ours = [
        certificate(0, 0.9, bound="two-class", radius_cohen=0.4),
        certificate(1, 0.2, bound="two-class", radius_cohen=0.0),
    ]
    log = ClassicLog("theirs", [right(0, 0.4), not_right(1)])
    asked = compare_with_log(ours, log, radii=[0.0])
    cohen = compare_with_log(ours, log, radii=[0.0], radius="radius_cohen")
    assert (asked.acr, asked.accuracies, asked.same_prediction) == (0.55, (1.0,), 1)
    assert (cohen.acr, cohen.accuracies, cohen.same_prediction) == (0.2, (0.5,), 2)
    assert cohen.difference == (0.0, 0.0)


def test_a_log_without_predictions(tmp_path: Path) -> None:
    savemat(tmp_path / "440.mat", {"hard": np.array([0.25, -1.0, 0.3, -1.0, 0.5])})
    one = compare_with_log(OURS, read_macer_mat(tmp_path / "440.mat", start=0), radii=[0.25])
    assert one.same_prediction is None
    assert one.log_acr == pytest.approx((0.21, 0.21))
    assert one.log_accuracies == (Interval(0.6, 0.6),)
    assert (one.model_further, one.log_further) == (2, 1)
    section = comparison_section(one)
    assert "| 440 (log) | 60.0 | 0.210 | 1 |" in section
    assert "the ACR of net minus that of the log is +0.150, with a 95%" in section
    assert "by more than the rounding; the log keeps no predictions to compare. The" in section


images = st.lists(
    st.tuples(
        st.floats(0, 4, allow_subnormal=False),
        st.booleans(),
        st.floats(0, 4, allow_subnormal=False),
        st.booleans(),
    ),
    min_size=2,
    max_size=12,
)


@settings(max_examples=60)
@given(images, st.sampled_from([".3", ".3f"]), st.integers(0, 3))
def test_intervals_contain_what_the_unrounded_log_gives(
    tmp_path_factory: pytest.TempPathFactory,
    both: list[tuple[float, bool, float, bool]],
    convention: str,
    seed: int,
) -> None:
    ours, theirs, lines = [], [], ["idx\tlabel\tpredict\tradius\tcorrect"]
    for index, (radius, ours_right, other, other_right) in enumerate(both):
        ours.append(certificate(index, radius) if ours_right else wrong(index, radius))
        theirs.append(certificate(index, other) if other_right else wrong(index, other))
        answer = 1 if other_right else 0
        lines.append(f"{index}\t1\t{answer}\t{other:{convention}}\t{answer}")
    path = tmp_path_factory.mktemp("log") / "log.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    one = compare_with_log(
        ours, read_classic_log(path), radii=[0.0, 0.5, 1.0], resamples=50, seed=seed
    )
    exact = paired_bootstrap(ours, theirs, resamples=50, seed=seed)
    tiny = 1e-12
    assert one.bootstrap.low - tiny <= exact.low <= exact.high <= one.bootstrap.high + tiny
    assert one.difference.low - tiny <= exact.difference <= one.difference.high + tiny
    assert one.log_acr.low - tiny <= exact.second <= one.log_acr.high + tiny
    further = [
        row.radius_if_correct > other.radius_if_correct for row, other in pairs(ours, theirs)
    ]
    behind = [row.radius_if_correct < other.radius_if_correct for row, other in pairs(ours, theirs)]
    assert one.model_further <= sum(further)
    assert one.log_further <= sum(behind)
    for radius, interval in zip(one.radii, one.log_accuracies, strict=True):
        reached = sum(row.correct and row.radius >= radius for row in theirs) / len(theirs)
        assert interval.low <= reached <= interval.high


def pairs(
    first: list[Certificate], second: list[Certificate]
) -> list[tuple[Certificate, Certificate]]:
    return list(zip(first, second, strict=True))


def half_unit(text: str) -> float:
    """Half a unit of the last printed digit of a text like 0.0838."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


@pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")
@pytest.mark.skipif(not RESULTS.is_dir(), reason="the measured run is not here")
def test_the_shipped_run_beside_the_authors_log() -> None:
    run = load_run(RESULTS)
    assert run.ensemble is not None
    log = read_classic_log(AUTHORS_LOGS / "sween3.tsv", sigma=0.5, n=100_000, alpha=0.001)
    one = compare_with_log(run.models[run.ensemble], log)

    # All of it again from the two files, by other code.
    with gzip.open(RESULTS / "certificates.jsonl.gz", "rt", encoding="utf-8") as stream:
        mine = {
            row["index"]: row for row in map(json.loads, stream) if row["model"] == run.ensemble
        }
    with (AUTHORS_LOGS / "sween3.tsv").open(encoding="utf-8", newline="") as stream:
        theirs = {int(row["idx"]): row for row in csv.DictReader(stream, delimiter="\t")}
    order = sorted(mine)
    assert order == sorted(theirs) == list(range(888, 1888)) == list(one.indices)
    ours = np.array(
        [(mine[i]["prediction"] == mine[i]["label"]) * mine[i]["radius"] for i in order]
    )
    hit = np.array([theirs[i]["correct"] == "1" for i in order])
    printed = np.array([float(theirs[i]["radius"]) for i in order])
    half = np.array([half_unit(theirs[i]["radius"]) for i in order])
    low, high = hit * np.maximum(printed - half, 0), hit * (printed + half)
    assert one.acr == pytest.approx(ours.mean())
    assert one.log_acr == pytest.approx((low.mean(), high.mean()))
    assert one.log_acr.low < 0.631 < one.log_acr.high  # what the log is known for
    assert one.difference == pytest.approx(((ours - high).mean(), (ours - low).mean()))
    assert one.model_further == np.sum(ours > high + 1e-12)
    assert one.log_further == np.sum(low > ours + 1e-12)
    answers = [str(mine[i]["prediction"]) == theirs[i]["predict"] for i in order]
    assert one.same_prediction == sum(answers)
    for radius, accuracy, interval in zip(
        one.radii[1:], one.accuracies[1:], one.log_accuracies[1:], strict=True
    ):
        assert accuracy == pytest.approx(np.mean(ours >= radius))
        assert interval.low == pytest.approx(np.mean(low >= radius - 1e-12))
        assert interval.high == pytest.approx(np.mean(high >= radius - 1e-12))
    assert one.log_accuracies[0] == (hit.mean(), hit.mean())

    # Another generator: the interval must agree up to the bootstrap's own noise.
    draws = np.random.default_rng(1).integers(0, 1000, size=(4000, 1000))
    assert one.bootstrap.low == pytest.approx(
        np.quantile((ours - high)[draws].mean(axis=1), 0.025), abs=0.001
    )
    assert one.bootstrap.high == pytest.approx(
        np.quantile((ours - low)[draws].mean(axis=1), 0.975), abs=0.001
    )
    assert "beside sween3\n\n| Model | 0.00 |" in comparison_section(one)


@pytest.mark.skipif(not AUTHORS_LOGS.is_dir(), reason="the authors' logs are not here")
@pytest.mark.skipif(not RESULTS.is_dir(), reason="the measured run is not here")
def test_known_digits_narrow_every_interval() -> None:
    run = load_run(RESULTS)
    assert run.ensemble is not None
    rows, path = run.models[run.ensemble], AUTHORS_LOGS / "sween3.tsv"
    wide = compare_with_log(rows, read_classic_log(path))
    sharp = compare_with_log(rows, read_classic_log(path, significant_digits=3))
    assert wide.log_acr.low < sharp.log_acr.low < 0.632 < sharp.log_acr.high < wide.log_acr.high
    assert wide.bootstrap.low < sharp.bootstrap.low < sharp.bootstrap.high < wide.bootstrap.high
    assert wide.model_further <= sharp.model_further
