"""The page's JSON says what the certificates say, recomputed here by other means."""

import dataclasses
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from sween.errors import BadInput, UnknownName
from sween.records import Certificate
from sween.report.page import write_page

from .samples import ENSEMBLE, VOTES, attacked, measured, page_run, random_rows, read_page

ROWS = random_rows(300, first=40)


def content_of(tmp_path: Path, **fields: Any) -> Any:
    run = fields.pop("run", None) or measured(ROWS)
    write_page(tmp_path / "page.html", [page_run(run, **fields)])
    return read_page(tmp_path / "page.html")[1]


def of_model(model: str) -> list[Certificate]:
    return sorted((row for row in ROWS if row.model == model), key=lambda row: row.index)


def floor_units(radius: float) -> int:
    return math.floor(Fraction(repr(radius)) * 10_000)


def test_table_equals_the_certificates(tmp_path: Path) -> None:
    table = content_of(tmp_path)["table"]
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
        declined = sum(one.prediction == -1 for one in own) / len(own)
        assert cells["abstain %"][1] == pytest.approx(declined)
        assert cells["evaluations"][0] == ("2.00" if cells["Model"][0] == ENSEMBLE else "1.00")


def test_best_values_are_models(tmp_path: Path) -> None:
    table = content_of(tmp_path)["table"]
    place = [column["heading"] for column in table["columns"]].index("ACR")
    models = [row for row in table["rows"] if row["kind"] not in ("average", "envelope")]
    best = max(models, key=lambda row: row["cells"][place][1])
    assert [row for row in table["rows"] if row["cells"][place][2]] == [best]


def test_curves_equal_the_certificates_by_both_bounds(tmp_path: Path) -> None:
    content = content_of(tmp_path)
    for model in content["runs"][0]["models"]:
        own = of_model(model["name"])
        cohen = [one.radius for one in own if one.prediction == one.label]
        two_class = [one.radius_two_class or 0.0 for one in own if one.candidate == one.label]
        for bound, radii in (("cohen", cohen), ("two-class", two_class)):
            curve = model["curves"][bound]
            assert curve["radii"] == sorted(map(floor_units, radii))
            assert curve["acr"] == f"{math.floor(1000 * math.fsum(radii) / len(own)) / 1000:.3f}"


def test_counting_in_units_is_exact_at_every_hundredth(tmp_path: Path) -> None:
    curve = content_of(tmp_path)["runs"][0]["models"][-1]["curves"]["cohen"]["radii"]
    right = [one.radius for one in of_model(ENSEMBLE) if one.prediction == one.label]
    for hundredths in range(300):
        reaching = sum(units >= 100 * hundredths for units in curve)
        assert reaching == sum(Fraction(radius) >= Fraction(hundredths, 100) for radius in right)


def test_a_bound_that_cannot_be_had_is_null(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, radius_two_class=None) for row in ROWS]
    models = content_of(tmp_path, run=measured(rows))["runs"][0]["models"]
    assert {model["curves"]["two-class"] for model in models} == {None}
    assert all(model["curves"]["cohen"]["radii"] for model in models)


def test_gallery_equals_the_certificates(tmp_path: Path) -> None:
    run = content_of(tmp_path)["runs"][0]
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


def test_rows_in_another_order_give_the_same_gallery(tmp_path: Path) -> None:
    shuffled = content_of(tmp_path, run=measured(ROWS[::-1]))["runs"][0]
    plain = content_of(tmp_path)["runs"][0]
    assert shuffled["gallery"]["index"] == plain["gallery"]["index"]
    assert shuffled["gallery"]["answers"][0] == plain["gallery"]["answers"][-1]


def test_attacks(tmp_path: Path) -> None:
    own = of_model(ENSEMBLE)[:4]
    outcomes = [
        attacked(row, outcome, alarm=outcome == "broken")
        for row, outcome in zip(own, ("robust", "broken", "abstained", "declined"), strict=True)
    ]
    run = content_of(tmp_path, attacks=outcomes)["runs"][0]
    start, point = run["attacks"]
    right = sum(row.clean_prediction == row.label for row in outcomes)
    assert (start["radius"], start["resisting"], start["count"]) == (0, right, 4)
    assert (start["eps"], start["alarms"]) == ("0.00", 0)  # nobody attacks there
    assert (point["radius"], point["resisting"], point["count"]) == (5000, 2, 4)
    assert (point["model"], point["attack"], point["eps"]) == (ENSEMBLE, "pgd", "0.50")
    assert point["alarms"] == 1
    label = own[1].label
    assert label is not None
    assert run["gallery"]["outcomes"][1] == [[1, 1, (label + 1) % 5, 1]]
    assert run["gallery"]["outcomes"][4] is None


def test_accuracies_have_their_intervals(tmp_path: Path) -> None:
    """Against the quantiles of the beta distribution, which define them."""
    table = content_of(tmp_path)["table"]
    headings = [column["heading"] for column in table["columns"]]
    widest = 0.0
    for row in table["rows"]:
        cells = dict(zip(headings, row["cells"], strict=True))
        if row["kind"] in ("average", "envelope"):
            assert len(cells["0.50"]) == 3
            continue
        for radius in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0):
            _, share, _, interval, short = cells[f"{radius:.2f}"]
            count = round(300 * share)
            low = stats.beta.ppf(0.025, count, 301 - count) if count else 0.0
            high = stats.beta.ppf(0.975, count + 1, 300 - count) if count < 300 else 1.0
            ends = [float(number) / 100 for number in re.findall(r"\d+\.\d", interval)]
            assert low - 0.001 - 1e-9 <= ends[0] <= low
            assert high <= ends[1] <= high + 0.001 + 1e-9
            assert short is None, "300 images are not few"
            widest = max(widest, share - low, high - share)
    (note,) = table["notes"]
    (said,) = re.findall(r"at most (\d+\.\d) percentage points", note)
    assert 100 * widest <= float(said) <= 100 * widest + 0.1


def test_images_that_could_not_be_read_are_counted(tmp_path: Path) -> None:
    run = measured(ROWS, config={"skipped": "3,17"})
    content = content_of(tmp_path, run=run)["runs"][0]
    assert content["notes"] == ["2 images could not be read and are not counted."]
    assert content_of(tmp_path)["runs"][0]["notes"] == []


def test_provenance(tmp_path: Path) -> None:
    sections = dict(content_of(tmp_path)["runs"][0]["provenance"])
    certificates = dict(sections["Certificates"])
    assert certificates["indices, ends excluded"] == "40:340"
    assert certificates["seeds"] == "0"
    assert certificates["alpha"] == "0.001"
    assert dict(sections["config.toml"])["weightings.convex"] == "0.25, 0.75"
    assert dict(sections["environment.json"]) == {"commit": "0123abc", "gpu": "none"}


def test_an_incomplete_run_says_so(tmp_path: Path) -> None:
    run = content_of(tmp_path, run=measured(ROWS, images_asked=500))["runs"][0]
    assert (run["count"], run["asked"]) == (300, 500)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sigma": 0.25}, "sigma of the pgd attack"),
        ({"label": 4}, "label of the pgd attack"),
    ],
)
def test_attacks_on_something_else_are_refused(change: dict[str, Any], words: str) -> None:
    row = next(row for row in of_model(ENSEMBLE) if row.label != 4)
    with pytest.raises(BadInput, match=words):
        page_run(measured(ROWS), attacks=[dataclasses.replace(attacked(row, "robust"), **change)])


def test_attacks_twice_or_on_an_unknown_model_are_refused() -> None:
    outcome = attacked(of_model(ENSEMBLE)[0], "robust")
    with pytest.raises(BadInput, match=r"expected 1 at eps 0\.5, got 2"):
        page_run(measured(ROWS), attacks=[outcome, outcome])
    with pytest.raises(UnknownName, match="attacked model 'cow'"):
        page_run(measured(ROWS), attacks=[dataclasses.replace(outcome, model="cow")])
