"""The page's JSON says what the certificates say, recomputed here by other means."""

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sween.records import Certificate
from tests.report.folders import attack_outcome

from .samples import (
    ENSEMBLE,
    VOTES,
    attack_with,
    measured,
    outcome_of,
    random_rows,
    toys,
    write_page,
)

ROWS = random_rows(300, first=40)
RUN = measured(ROWS)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("page") / "page.html"
    return write_page(path, RUN, datasets={RUN.name: toys(340)})


def of_model(model: str) -> list[Certificate]:
    return sorted((row for row in ROWS if row.model == model), key=lambda row: row.index)


def floor_units(radius: float) -> int:
    return math.floor(Fraction(repr(radius)) * 10_000)


def test_table_equals_the_certificates(content: Any) -> None:
    table = content["table"]
    headings = [column["heading"] for column in table["columns"]]
    assert headings[:3] == ["σ", "Model", "kind"], "a single run needs no column of its name"
    assert table["facts"] == ["run-a", "toys", "300 images at indices 40..339"]
    for row in table["rows"]:
        cells = dict(zip(headings, row["cells"], strict=True))
        if row["kind"] in ("average", "envelope"):
            assert cells["evaluations"] == ["–", None, 0]
            continue
        own = of_model(cells["Model"][0])
        right = [one for one in own if one.prediction == one.label]
        for radius in (0.0, 0.25, 0.5, 2.0):
            share = sum(one.radius >= radius for one in right) / len(own)
            assert cells[f"{radius:.2f}"][1] == pytest.approx(share, abs=1e-12)
            assert cells[f"{radius:.2f}"][0] == f"{100 * share:.1f}"
        acr = math.fsum(one.radius for one in right) / len(own)
        assert cells["ACR"][1] == pytest.approx(acr)
        assert float(cells["ACR"][0]) <= acr < float(cells["ACR"][0]) + 0.001
        abstained = sum(one.prediction == -1 for one in own) / len(own)
        assert cells["abstain %"][1] == pytest.approx(abstained)
        assert cells["evaluations"][0] == ("2.00" if cells["Model"][0] == ENSEMBLE else "1.00")


def test_curves_equal_the_certificates_under_both_bounds(content: Any) -> None:
    for model in content["runs"][0]["models"]:
        own = of_model(model["name"])
        cohen = [one.radius for one in own if one.prediction == one.label]
        two_class = [one.radius_two_class or 0.0 for one in own if one.candidate == one.label]
        for bound, radii in (("cohen", cohen), ("two-class", two_class)):
            curve = model["curves"][bound]
            assert curve["radii"] == sorted(map(floor_units, radii))
            for hundredths in range(300):  # counting in units is exact at each of them
                reaching = sum(units >= 100 * hundredths for units in curve["radii"])
                assert reaching == sum(Fraction(own) >= Fraction(hundredths, 100) for own in radii)
            assert curve["acr"] == f"{math.floor(1000 * math.fsum(radii) / len(own)) / 1000:.3f}"


def test_a_bound_that_is_not_available_is_null(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, radius_two_class=None) for row in ROWS]
    models = write_page(tmp_path / "page.html", measured(rows))["runs"][0]["models"]
    assert {model["curves"]["two-class"] for model in models} == {None}
    assert all(model["curves"]["cohen"]["radii"] for model in models)


def test_gallery_equals_the_certificates(content: Any) -> None:
    run = content["runs"][0]
    gallery = run["gallery"]
    assert gallery["index"] == list(range(40, 340))
    for model, answers in zip(run["models"], gallery["answers"], strict=True):
        for position, row in enumerate(of_model(model["name"])):
            assert gallery["label"][position] == row.label
            assert answers["prediction"][position] == row.prediction
            assert answers["radius"][position] == floor_units(row.radius)
            votes = answers["votes"][position]
            top = sorted((count for count in row.estimation_counts if count), reverse=True)[:3]
            assert votes[1::2] == top
            assert [row.estimation_counts[name] for name in votes[::2]] == top
            assert answers["n"][position] == VOTES


def test_attacks(tmp_path: Path) -> None:
    own = [row for row in of_model(ENSEMBLE) if row.prediction == row.label][:4]
    outcomes = [
        outcome_of(row, outcome, alarm=outcome == "broken", distance=9.0)
        for row, outcome in zip(own, ("robust", "broken", "abstained", "robust"), strict=True)
    ]
    other = attack_with([attack_outcome(40, 0.5, "robust", model="cow")], name="other")
    content = write_page(tmp_path / "page.html", RUN, attacked=[attack_with(outcomes), other])
    (run,) = content["runs"]
    start, point = run["attacks"]
    fields = ("model", "attack", "radius", "eps", "count", "robust", "alarms")
    assert [start[name] for name in fields] == [ENSEMBLE, "pgd", 0, "0.00", 4, 4, 0]
    assert [point[name] for name in fields] == [ENSEMBLE, "pgd", 5000, "0.50", 4, 3, 1]
    assert own[1].label is not None
    shown = dict(zip(run["gallery"]["index"], run["gallery"]["outcomes"], strict=True))
    assert shown[own[1].index] == [[1, 1, (own[1].label + 1) % 5, 1]]
    assert shown[own[-1].index + 1] is None
    assert ["model", ENSEMBLE] in dict(run["provenance"])["Attack pgd"]
    assert [one["name"] for one in content["others"]] == ["Attack other"]


def test_provenance(content: Any) -> None:
    sections = dict(content["runs"][0]["provenance"])
    certificates = dict(sections["Certificates"])
    assert certificates["indices (Python slices)"] == "40:340"
    assert (certificates["seeds"], certificates["alpha"]) == ("0", "0.001")
    assert ["dataset", "toys"] in sections["config.toml"]
    assert dict(sections["environment.json"]) == {"commit": "0123abc", "gpu": "none"}


def test_warnings(content: Any, tmp_path: Path) -> None:
    assert content["runs"][0]["warnings"] == []
    weightings = {"convex": [0.25, 0.75]}
    run = measured(ROWS, indices="40:540", images=500, skipped="3,17", weightings=weightings)
    own = write_page(tmp_path / "page.html", run)["runs"][0]
    assert own["warnings"] == [
        "Incomplete: 300 of the 500 requested images.",
        "2 images could not be read and are not counted.",
    ]
    assert ["weightings.convex", "0.25, 0.75"] in dict(own["provenance"])["config.toml"]
