"""The goals that docs/speed.md says were met or missed, with the figures in results/."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "certification-speed"
LATEST = "h200-any-network-7.json"


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
    met, _ = paragraph.split(" Missed: ")
    resnet50 = _row(LATEST, "imagenet-resnet50")
    rate = resnet50["samples_per_second"]
    assert resnet50["ratio"] >= 6
    assert f"({resnet50['ratio']:.1f}, at {rate:,.0f} samples/s; the goal named 45,000" in met
    assert f"of which that is {100 * rate / 45_000:.0f}%)" in met
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


NAMES = {
    "strangers:wide_resnet28_10": "WideResNet-28-10",
    "strangers:resnet110": "the stranger's ResNet-110",
    "strangers:resnet18_cifar": "ResNet-18",
    "resnet20x4": "resnet20x4",
}


def test_first_votes_are_those_measured(paragraph: str) -> None:
    def seconds(model: str, run: str) -> float:
        found = _row(LATEST, model, run)["first_vote_seconds"]
        assert isinstance(found, float)
        return found

    met, missed = paragraph.split(" Missed: ")
    assert f"within 15 s ({seconds('imagenet-resnet50', 'first'):.1f})" in met
    for model, name in NAMES.items():
        assert f"{seconds(model, 'first'):.1f} for {name}" in met
    small = [row for row in _rows(LATEST) if row["image_shape"][1] == 32]
    assert all(row["first_vote_seconds"] <= 8 for row in small)
    assert seconds("imagenet-resnet50", "first") <= 15
    late = {
        row["model"]
        for row in _rows(LATEST)
        if row["run"] == "again" and row["first_vote_seconds"] > 5
    }
    assert late == {"strangers:wide_resnet28_10", "strangers:vit_small", "strangers:convnext_tiny"}
    assert (
        f"WideResNet-28-10 takes {seconds('strangers:wide_resnet28_10', 'again'):.1f} s" in missed
    )
    assert f"ViT-S/16 {seconds('strangers:vit_small', 'again'):.1f} s" in missed
    assert f"ConvNeXt-T {seconds('strangers:convnext_tiny', 'again'):.1f} s" in missed
    both = [seconds(model, "again") for model in ("imagenet-resnet50", "strangers:resnet110")]
    assert f"(ResNet-50 takes {both[0]:.1f}, ResNet-110 {both[1]:.1f})" in missed


def test_what_resnet50s_layers_take() -> None:
    content = json.loads((MEASURED / "h200-convolutions.json").read_text())
    text = " ".join((ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split())
    layers = {row["layer"]: row for row in content["results"]}
    shortcut = layers["1x1 64->256 of 56 px +relu +shortcut"]
    assert shortcut["product"] / shortcut["cudnn"] == pytest.approx(0.5, abs=0.05)
    (pair, stem) = (
        [f"{row[way]:,.0f}" for way in ("kernel", "one by one")] for row in content["groups"]
    )
    assert f"by one kernel in {stem[0]} us for {content['rows']} images, {stem[1]} by" in text
    assert f"in {pair[0]} us by one kernel, {pair[1]} by libraries" in text


def test_no_network_is_slower_than_plain_torch_compile() -> None:
    text = " ".join((ROOT / "docs" / "speed.md").read_text(encoding="utf-8").split())
    assert "no network that was measured is slower" in text
    assert all(row["ratio_to_plain"] > 1 for row in _rows("h200-plain-compile.json"))


def test_three_times_the_channels_are_slower_than_four() -> None:
    for depth in (20, 26, 32):
        three, four = (_row(LATEST, f"resnet{depth}x{width}") for width in (3, 4))
        assert three["samples_per_second"] < four["samples_per_second"]
