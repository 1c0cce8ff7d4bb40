"""Rows of certificates: a lossless round trip to disk, and detection of damage."""

import dataclasses
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sween.errors import BadInput
from sween.records import (
    ABSTAIN,
    Certificate,
    format_radius,
    from_row,
    row_checksum,
    to_row,
)

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63)
COUNTS = st.lists(st.integers(0, 10**9), max_size=12).map(tuple)
CERTIFICATES = st.builds(
    Certificate,
    **dict.fromkeys(("index", "prediction", "candidate", "n0", "n", "samples", "seed"), WHOLE),
    **dict.fromkeys(("forward_rows", "member_evaluations"), WHOLE),
    **dict.fromkeys(("radius", "lower_bound", "alpha", "sigma", "seconds"), NUMBERS),
    **dict.fromkeys(("radius_cohen", "radius_two_class"), st.none() | NUMBERS),
    **dict.fromkeys(("bound", "sampling", "exit", "votes", "noise"), st.text()),
    **dict.fromkeys(("precision", "model"), st.text()),
    **dict.fromkeys(("selection_counts", "estimation_counts"), COUNTS),
    **dict.fromkeys(("selection_scores", "estimation_scores"), st.none() | COUNTS),
    label=st.none() | WHOLE,
    decisions=st.none() | st.dictionaries(st.text(), st.booleans()),
)
SAMPLE = Certificate(
    index=888,
    label=3,
    prediction=3,
    radius=0.1 + 0.2,
    radius_cohen=0.1 + 0.2,
    radius_two_class=None,
    candidate=3,
    lower_bound=0.9,
    selection_counts=(0, 0, 1, 99),
    estimation_counts=(1, 2, 3, 994),
    n0=100,
    n=1000,
    alpha=1e-3,
    sigma=0.5,
    bound="cohen",
    sampling="fixed",
    samples=1100,
    decisions={"0.25": True},
    exit="none",
    votes="hard",
    noise="float32",
    precision="float32",
    forward_rows=100,
    member_evaluations=1100,
    seconds=0.25,
    model="SWEEN-3",
    seed=0,
)
FIELDS = [field.name for field in dataclasses.fields(Certificate)]


def with_fields(**fields: Any) -> Certificate:
    return dataclasses.replace(SAMPLE, **fields)


def changed(value: Any) -> Any:
    """Another value of the same JSON type, as close as possible."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, str):
        return value + " "
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1])]
    if isinstance(value, dict):
        return {name: changed(item) for name, item in value.items()}
    return 0.0


@given(CERTIFICATES)
def test_a_certificate_survives_json(certificate: Certificate) -> None:
    row = to_row(certificate)
    text = json.dumps(row, allow_nan=False)
    assert "\n" not in text, "a row is one line"
    again = json.loads(text)
    assert again == row
    assert from_row(Certificate, again) == certificate
    assert to_row(from_row(Certificate, again)) == row
    assert again["checksum"] == row_checksum(again)


def test_a_row_has_the_documented_names() -> None:
    assert list(to_row(SAMPLE)) == ["schema", *FIELDS, "checksum"]
    assert to_row(SAMPLE)["schema"] == Certificate.SCHEMA == 1


@pytest.mark.parametrize("name", ["schema", *FIELDS])
def test_the_checksum_changes_with_every_field(name: str) -> None:
    row = to_row(SAMPLE)
    assert row_checksum({**row, name: changed(row[name])}) != row["checksum"]
    without = {other: value for other, value in row.items() if other != name}
    assert row_checksum(without) != row["checksum"]


def test_the_checksum_does_not_depend_on_the_order_or_on_itself() -> None:
    row = to_row(SAMPLE)
    backwards = dict(reversed(row.items()))
    assert row_checksum(backwards) == row["checksum"]
    assert row_checksum({**row, "checksum": "other"}) == row["checksum"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    row = to_row(SAMPLE)
    del row[name]
    with pytest.raises(BadInput, match=rf"run, line 3: fields.*missing \['{name}'\]"):
        from_row(Certificate, row, where="run, line 3")


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"unknown \['confidence'\]"):
        from_row(Certificate, {**to_row(SAMPLE), "confidence": 1})


@pytest.mark.parametrize("schema", [Certificate.SCHEMA + 1, 0, None, "1"])
def test_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(BadInput, match=f"schema: expected 1.*, got {schema}.*version"):
        from_row(Certificate, {**to_row(SAMPLE), "schema": schema})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index", "888"),
        ("index", 1.5),
        ("index", True),
        ("index", None),
        ("label", "3"),
        ("radius", "0.5"),
        ("radius", None),
        ("radius_cohen", [0.5]),
        ("selection_counts", 5),
        ("selection_counts", "123"),
        ("estimation_counts", [1, 2.5]),
        ("estimation_counts", [1, None]),
        ("decisions", [True]),
        ("decisions", {"0.25": 1}),
        ("model", 3),
        ("seconds", False),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"run, line 3: values.*{name} ") as caught:
        from_row(Certificate, {**to_row(SAMPLE), name: value}, where="run, line 3")
    assert repr(value) in str(caught.value)


def test_an_integer_is_a_valid_radius() -> None:
    row = {**to_row(SAMPLE), "radius": 1, "radius_cohen": 1, "sigma": 1}
    assert from_row(Certificate, row).radius == 1


def test_what_counts_towards_the_average_radius() -> None:
    assert SAMPLE.correct
    assert SAMPLE.radius_if_correct == SAMPLE.radius
    for other in ({"prediction": 2}, {"prediction": ABSTAIN}, {"label": None}):
        certificate = with_fields(**other)
        assert not certificate.correct
        assert certificate.radius_if_correct == 0.0
    # -1 is what some data sets call an unlabelled image: an abstention never counts as right.
    assert not with_fields(prediction=ABSTAIN, label=ABSTAIN).correct


@given(st.floats(0, 1000), st.integers(0, 9))
@example(0.1 + 0.2, 3)
@example(0.3, 3)
@example(0.29, 2)
@example(1.001, 3)
@example(math.nextafter(0.3, 0), 3)
@example(math.nextafter(1.0, 0), 3)
@example(0.9999999999, 3)
@example(5e-324, 3)
def test_a_radius_is_never_rounded_up_and_never_by_a_whole_digit(
    radius: float, digits: int
) -> None:
    text = format_radius(radius, digits)
    assert float(text) <= radius
    assert float(Decimal(text) + Decimal(10) ** -digits) > radius
    assert len(text.partition(".")[2]) == digits


@pytest.mark.parametrize(
    ("radius", "text"),
    [(0.5669999, "0.566"), (-0.0, "0.000"), (2, "2.000"), (-0.0001, "-0.001")],
)
def test_radii_for_display(radius: float, text: str) -> None:
    assert format_radius(radius) == text


def test_a_certificate_prints_in_one_line() -> None:
    assert str(SAMPLE) == "index 888: class 3, radius 0.300 (n = 1,000, alpha = 0.001, sigma = 0.5)"
    almost = dataclasses.replace(SAMPLE, radius=0.4999, label=7, samples=100_100)
    assert str(almost) == (
        "index 888: class 3, radius 0.499, true class 7 (n = 100,000, alpha = 0.001, sigma = 0.5)"
    )
    declined = dataclasses.replace(SAMPLE, prediction=ABSTAIN, radius=0.0, label=None)
    assert str(declined) == "index 888: abstained (n = 1,000, alpha = 0.001, sigma = 0.5)"
    assert repr(SAMPLE).startswith("Certificate(index=888, label=3,")
