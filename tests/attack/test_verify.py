"""Outcomes of attacks are derived again from their votes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sween
from sween.attack import AttackSettings, attack_images, verify_attacks
from sween.data import load_dataset
from sween.errors import CheckFailed, CheckpointError
from sween.records import row_checksum
from sween.smoothing import SmoothedClassifier

Row = dict[str, Any]


@pytest.fixture(scope="module", params=["pgd", "ddn"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some digits under attack: robust ones and broken ones."""
    out: Path = tmp_path_factory.mktemp("attacked") / request.param
    ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
    attack_images(
        ensemble,
        load_dataset("digits"),
        range(6),
        AttackSettings(attack=request.param, eps=(0.25, 1.5), samples=8, steps=10, n=500),
        out,
        classifier=SmoothedClassifier(ensemble, sigma=0.5, num_classes=10, name=ensemble.name),
        quiet=True,
    )
    return out


def _rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "attacks.jsonl").read_text().splitlines()]


def _copy(folder: Path, out: Path, rows: list[Row], *, config: str | None = None) -> Path:
    out.mkdir()
    text = (folder / "config.toml").read_text() if config is None else config
    (out / "config.toml").write_text(text)
    for row in rows:
        row["checksum"] = row_checksum(row)
    (out / "attacks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return out


def test_an_untouched_run_is_accepted(attacked: Path) -> None:
    verified = verify_attacks(attacked)
    assert (verified.rows, verified.images, verified.alarms) == (12, 6, 0)
    assert verified.broken > 0


FORGERIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "prediction": (lambda row: {"prediction": (row["prediction"] + 2) % 10}, "the votes say"),
    "outcome": (lambda row: {"outcome": "robust"}, "the answers say"),
    "distance": (lambda row: {"distance": 2 * row["eps"]}, "is not between 0 and"),
    "votes": (lambda row: {"counts": [1000, *row["counts"][1:]]}, "counts sum to"),
    "settings": (lambda row: {"n": 501}, "the run's config says 500"),
    "alarm": (lambda row: {"alarm": True}, "alarm is True"),
    "radius": (lambda row: {"certified_radius": 9.0}, "alarm is False"),
    "image": (lambda row: {"attacked_image": "AAAA"}, "has its attacked image"),
    "level": (lambda row: {"judge_alpha": 0.5}, "judge_alpha is"),
    "run": (lambda row: {"run": "0" * 16}, "another config"),
    "index": (lambda row: {"index": 77}, "is not of this run"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_rows_are_found(attacked: Path, tmp_path: Path, name: str) -> None:
    forge, message = FORGERIES[name]
    rows = _rows(attacked)
    place = next(i for i, row in enumerate(rows) if row["outcome"] == "broken")
    rows[place] |= forge(rows[place])
    with pytest.raises(CheckFailed, match=message):
        verify_attacks(_copy(attacked, tmp_path / "run", rows))


def test_missing_double_and_contradicting_rows_are_found(attacked: Path, tmp_path: Path) -> None:
    rows = _rows(attacked)
    with pytest.raises(CheckFailed, match="1 of 12 rows are missing"):
        verify_attacks(_copy(attacked, tmp_path / "less", rows[:-1]))
    with pytest.raises(CheckFailed, match="comes twice"):
        verify_attacks(_copy(attacked, tmp_path / "more", [*rows, rows[0]]))
    broken = next(row for row in rows if row["outcome"] == "broken" and row["eps"] == 1.5)
    weaker = [
        broken | {"eps": 0.25, "distance": 0.1}
        if (row["index"], row["eps"]) == (broken["index"], 0.25)
        else row
        for row in rows
    ]
    stronger = next(r for r in rows if r["outcome"] == "robust" and r["eps"] == 0.25)
    contrary = [
        stronger | {"eps": 1.5, "index": broken["index"], "label": stronger["label"]}
        if row is broken
        else row
        for row in weaker
    ]
    with pytest.raises(CheckFailed, match=r"is broken at 0\.25, but robust at 1\.5"):
        verify_attacks(_copy(attacked, tmp_path / "contrary", contrary))


def test_damaged_types_and_configs_are_one_line(attacked: Path, tmp_path: Path) -> None:
    rows = _rows(attacked)
    rows[0]["counts"] = ["a", "b"]
    with pytest.raises(CheckFailed, match="line 1"):
        verify_attacks(_copy(attacked, tmp_path / "types", rows))
    text = (attacked / "config.toml").read_text()
    config = "".join(line for line in text.splitlines(True) if not line.startswith("eps"))
    with pytest.raises(CheckpointError, match="with eps"):
        verify_attacks(_copy(attacked, tmp_path / "config", _rows(attacked), config=config))


def test_a_changed_character_is_found(attacked: Path, tmp_path: Path) -> None:
    out = _copy(attacked, tmp_path / "run", _rows(attacked))
    file = out / "attacks.jsonl"
    file.write_text(file.read_text().replace('"label": 3', '"label": 4', 1))
    with pytest.raises(CheckFailed, match="checksum"):
        verify_attacks(out)
