"""The table of certified accuracies: order, rounding, bold, extra columns."""

import csv
import io
import math

import pytest

from sween.errors import BadInput, UnknownName
from sween.report import DEFAULT_RADII, build_rows, to_markdown
from sween.report.rows import certified_table
from sween.report.tables import to_csv
from tests.evaluation.certificates import certificate, wrong

from .folders import CANDIDATES, ensemble_rows

RADII = (0.0, 0.5, 1.0)


def cells(markdown: str, model: str) -> list[str]:
    """The cells of a model's line."""
    for line in markdown.splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if parts[1] == model:
            return parts
    raise AssertionError(f"no row {model} in {markdown}")


def test_default_columns_are_the_papers() -> None:
    assert DEFAULT_RADII == (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    header = to_markdown(build_rows([certificate()])).splitlines()[0]
    radii = [f"{radius:.2f}" for radius in DEFAULT_RADII]
    names = ["σ", "Model", *radii, "ACR", "abstain %", "two-class ACR"]
    assert header == "| " + " | ".join(names) + " |"


def test_the_whole_table_by_hand() -> None:
    rows = build_rows(ensemble_rows()[::-1], ensemble="sween", radii=RADII)
    kinds = [row.kind for row in rows]
    assert kinds == ["candidate", "candidate", "average", "envelope", "ensemble"]
    rows = build_rows(ensemble_rows(), ensemble="sween", radii=RADII)
    assert to_markdown(rows).splitlines()[2:] == [
        "| 0.50 | ant | 50.0 | 50.0 | **25.0** | 0.375 | 25.0 | 0.375 |",
        "| 0.50 | bee | **75.0** | 0.0 | 0.0 | 0.300 | **0.0** | 0.300 |",
        "| 0.50 | AVG | 62.5 | 25.0 | 12.5 | 0.337 | 12.5 | 0.337 |",
        "| 0.50 | UE | 75.0 | 50.0 | 25.0 | 0.375 | - | 0.375 |",
        "| 0.50 | sween | **75.0** | **75.0** | **25.0** | **0.650** | 25.0 | **0.650** |",
    ]


def test_models_that_are_not_members_stay_out_of_the_summaries() -> None:
    baseline = [certificate(index, 3.0, model="big") for index in range(10, 14)]
    rows = build_rows(
        [*ensemble_rows(), *baseline], ensemble="sween", members=CANDIDATES, radii=RADII
    )
    assert [row.model for row in rows] == ["ant", "bee", "AVG", "UE", "big", "sween"]
    assert rows[3].acr == pytest.approx(0.375)


def test_radii_are_never_rounded_up() -> None:
    # 0.6299999 would print as 0.630 with ordinary rounding: a radius nobody certified
    rows = [certificate(0, 0.6299999), certificate(1, 0.6299999)]
    markdown = to_markdown(build_rows(rows, radii=[0.0]))
    assert cells(markdown, "net") == ["0.50", "net", "100.0", "0.629", "0.0", "0.629"]


def test_cohens_acr_is_shown_beside_another_bound() -> None:
    rows = [certificate(0, 0.8, bound="two-class", radius_cohen=0.3)]
    markdown = to_markdown(build_rows(rows, radii=[0.0]))
    assert "Cohen ACR" in markdown
    assert cells(markdown, "net")[3:] == ["0.800", "0.0", "0.800", "0.300"]


def test_bold_is_decided_within_a_run_and_noise_level() -> None:
    low = build_rows(ensemble_rows(sigma=0.25), radii=[0.0], run="low")
    high = build_rows(
        [certificate(i, 9.0, sigma=1.0, model=m) for i in range(2) for m in ("x", "y")],
        radii=[0.0],
        run="high",
    )
    markdown = to_markdown([*low, *high])
    assert "| low | 0.25 | sween | **75.0** | **0.650** |" in markdown
    assert "**9.000**" not in markdown


def test_csv_keeps_every_digit() -> None:
    rows = [certificate(0, 1 / 3), certificate(1, 0.1, radius_two_class=None), wrong(2)]
    built = build_rows(rows, radii=[0.125, 0.0, 0.0], run="digits")
    (record,) = csv.DictReader(io.StringIO(to_csv(certified_table(built))))
    assert float(record["acr"]) == math.fsum([1 / 3, 0.1]) / 3
    assert float(record["certified_accuracy_0.125"]) == 1 / 3
    assert float(record["certified_accuracy_0.00"]) == 2 / 3
    assert record["acr_two_class"] == ""
    assert cells(to_markdown(built), "net")[-1] == "-"
    assert (record["run"], record["kind"], record["images"]) == ("digits", "model", "3")


def test_rows_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(BadInput, match="index 13 only for ant"):
        build_rows([*ensemble_rows()[:-1], certificate(99, model="sween")], ensemble="sween")
    with pytest.raises(UnknownName, match="did you mean 'sween'"):
        build_rows(ensemble_rows(), ensemble="sweep")
    with pytest.raises(BadInput, match="at least one"):
        build_rows([])
