"""The goals that docs/speed.md says were met or missed, with the figures in results/."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "certification-speed"
LATEST, RESNET50 = "h200-any-network-5.json", "h200-any-network-6.json"


def _rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((MEASURED / name).read_text())["results"]
    return rows


def _row(name: str, model: str, run: str | None = "first") -> dict[str, Any]:
    (row,) = (row for row in _rows(name) if (row["model"], row.get("run")) == (model, run))
    return row


@pytest.fixture(scope="module")
def paragraph() -> str:
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    (found,) = (part for part in text.split("\n\n") if part.startswith("Goals that were met"))
    return " ".join(found.split())


def test_rates_are_those_measured(paragraph: str) -> None:
    met, missed = paragraph.split(" Missed: ")
    resnet50 = _row(RESNET50, "imagenet-resnet50")
    assert f"ResNet-50 reaches {resnet50['ratio']:.1f} times" in missed
    assert f"{resnet50['samples_per_second']:,.0f} samples/s of 45,000" in missed
    assert _row(LATEST, "strangers:vit_small")["ratio"] >= 8
    assert "ViT-S/16 8 times" in met
    wide = [_row(LATEST, "resnet20x4"), _row("h200-bench-int8.json", "resnet20x4", run=None)]
    assert min(row["samples_per_second"] for row in wide) >= 330_000
    assert "resnet20x4 330,000 samples/s (in float16, and almost twice that in int8)" in met
    assert 1.85 < wide[1]["samples_per_second"] / wide[0]["samples_per_second"] < 2
    integers = _row("h200-bench-int8.json", "resnet110", run=None)["samples_per_second"]
    halves = _row("h200-bench-0.2.0.json", "resnet110", run=None)["samples_per_second"]
    assert integers >= 1_100_000
    assert "ResNet-110 1,100,000 (in int8 alone: float16 stays at three quarters of it)" in met
    assert halves / 1_100_000 == pytest.approx(0.75, abs=0.01)


def test_first_votes_are_those_measured(paragraph: str) -> None:
    def seconds(name: str, model: str, run: str) -> str:
        return f"{_row(name, model, run)['first_vote_seconds']:.1f}"

    large, deep = "imagenet-resnet50", "strangers:resnet110"
    assert _row(RESNET50, large)["first_vote_seconds"] <= 15
    assert "first votes of ResNet-50 within 15 s. Missed:" in paragraph
    assert f"({seconds(LATEST, deep, 'first')} for the stranger's ResNet-110" in paragraph
    for model, name in {
        "strangers:resnet18_cifar": "ResNet-18",
        "resnet20x4": "resnet20x4",
        "strangers:wide_resnet28_10": "WideResNet-28-10",
    }.items():
        assert f"{seconds(LATEST, model, 'first')} for {name}" in paragraph
    again = f"({seconds(LATEST, deep, 'again')} for ResNet-110; ResNet-50 takes "
    assert f"{again}{seconds(RESNET50, large, 'again')})" in paragraph


def test_what_convolutions_with_a_shortcut_take(paragraph: str) -> None:
    layers = {row["layer"]: row for row in _rows("h200-convolutions.json")}
    cudnn = layers["1x1 64->256 of 56 px +relu +shortcut"]["cudnn"]
    first = (MEASURED / "h200-convolutions-trial.txt").read_text().splitlines()[0]
    (product,) = re.findall(r"^shortcut 64 256 56 \[\(0, ([\d.]+),", first)
    assert float(product) / cudnn == pytest.approx(0.5, abs=0.05)
    assert "which cuBLASLt computes in about half of cuDNN's time" in paragraph
    lost = {name: row["times"] * (row["cudnn"] - row["least"]) for name, row in layers.items()}
    most = sorted(lost, key=lambda name: -lost[name])[:2]
    assert {*most} == {"7x7 3->64 of 224 px /2 +relu", "1x1 64->256 of 56 px +relu +shortcut"}


def test_the_network_that_lost_to_plain_torch_compile_is_named() -> None:
    text = " ".join((ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split())
    trial = (MEASURED / "h200-forward-trial-any-network.txt").read_text()
    for rate in ("42,184", "43,899"):
        assert f"{rate}/s" in trial
        assert rate in text
    now = _row(LATEST, "strangers:wide_resnet28_10")["samples_per_second"]
    assert f"votes at {now:,.0f} since" in text
    assert now > 43_899
