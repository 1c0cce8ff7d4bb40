"""The table that `sween certify` ends with: the report's numbers, in 80 columns of plain text."""

import pytest

from sween.report.summary import WIDTH, summarise
from tests.evaluation.certificates import abstained, certificate, wrong


def test_the_table() -> None:
    rows = [
        certificate(0, 0.5999),
        certificate(1, 0.25),
        wrong(2, 0.9),
        abstained(3),
        *(certificate(index, 0.1, model="other") for index in range(4)),
    ]
    assert summarise(rows) == (
        "certified accuracy in % at l2 radius, over 4 images:\n"
        "model   0.00  0.25  0.50    ACR  abstain\n"
        "net     50.0  50.0  25.0  0.212     25.0\n"
        "other  100.0   0.0   0.0  0.100      0.0\n"
    )


def test_radii_that_were_to_be_decided_stand_alone() -> None:
    rows = [certificate(0, 0.4, sampling="decide"), abstained(1, sampling="decide")]
    assert summarise(rows, decided=(0.3, 0.75)) == (
        "certified accuracy in % at the radii decided, over 2 images:\n"
        "model  0.30  0.75  abstain\n"
        "net    50.0   0.0     50.0\n"
    )


def test_nothing_is_certified() -> None:
    assert summarise([abstained(0)]).splitlines()[1:] == [
        "model  0.00    ACR  abstain",
        "net     0.0  0.000    100.0",
    ]


@pytest.mark.parametrize("name", ["net", "package-module-" * 9 + "seed3"])
def test_no_line_is_longer_than_a_terminal(name: str) -> None:
    rows = [certificate(0, 3.0, model=f"{name}{number}") for number in range(3)]
    lines = summarise(rows).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(set(lines)) == len(lines), "names that were cut must still differ"
    assert "100.0 100.0" in lines[-1]
