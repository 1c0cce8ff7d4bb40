"""The goals that docs/speed.md says were missed, with the figures in results/."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "certification-speed"


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((MEASURED / name).read_text())["results"]
    return rows


def _row(name: str, model: str, run: str | None = "first") -> dict[str, Any]:
    (row,) = (row for row in _rows(name) if (row["model"], row.get("run")) == (model, run))
    return row


@pytest.fixture(scope="module")
def paragraph() -> str:
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    (found,) = (part for part in text.split("\n\n") if part.startswith("Goals that were missed"))
    return " ".join(found.split())


def test_rates_are_those_measured(paragraph: str) -> None:
    resnet50 = _row("h200-any-network-3.json", "imagenet-resnet50")
    transformer = _row("h200-any-network-3.json", "strangers:vit_small")
    wide = _row("h200-any-network.json", "resnet20x4")
    deep = _row("h200-bench-0.2.0.json", "resnet110", run=None)
    assert f"ResNet-50 reaches {resnet50['ratio']:.1f} times" in paragraph
    assert f"{resnet50['samples_per_second']:,.0f} samples/s of 45,000" in paragraph
    assert f"ViT-S/16 {transformer['ratio']:.1f} times of 8" in paragraph
    assert f"resnet20x4 reaches {wide['samples_per_second']:,.0f} of 330,000" in paragraph
    assert f"ResNet-110 {deep['samples_per_second']:,.0f}" in paragraph


def test_first_votes_are_those_measured(paragraph: str) -> None:
    def seconds(name: str, model: str, run: str) -> str:
        return f"{_row(name, model, run)['first_vote_seconds']:.1f}"

    large, deep = "imagenet-resnet50", "strangers:resnet110"
    third = "h200-any-network-3.json"
    assert f"ResNet-50 ({seconds(third, large, 'first')})" in paragraph
    assert f"({seconds(third, deep, 'first')} for the stranger's ResNet-110" in paragraph
    assert (
        f"{seconds('h200-any-network-4.json', 'strangers:resnet18_cifar', 'first')} for ResNet-18"
        in paragraph
    )
    quick = seconds("h200-any-network.json", "resnet20x4", "first")
    assert f"{quick} for resnet20x4" in paragraph
    again = f"({seconds(third, deep, 'again')} for ResNet-110, "
    assert f"{again}{seconds(third, large, 'again')} for ResNet-50)" in paragraph


def test_the_network_that_lost_to_plain_torch_compile_is_named() -> None:
    text = " ".join((ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split())
    trial = (MEASURED / "h200-forward-trial-any-network.txt").read_text()
    for rate in ("42,184", "43,899"):
        assert f"{rate}/s" in trial
        assert rate in text
