"""Outcomes of attacks are derived again from their votes."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sween.attack import AttackSettings, verify_attacks
from sween.errors import BadInput, CheckFailed, CheckpointError
from sween.records import row_checksum
from sween.report import write_report
from sween.run_folder import read_config, run_tag, to_toml
from sween.runs import AttackConfig
from sween.runs.attacked_certificates import digest_of_radii
from tests.attack.quick import attack as attack_digits

Row = dict[str, Any]


@pytest.fixture(scope="module", params=["pgd", "ddn"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some digits under attack: robust ones and broken ones."""
    out: Path = tmp_path_factory.mktemp("attacked") / request.param
    settings = AttackSettings(attack=request.param, eps=(0.25, 1.5), samples=8, steps=10, n=500)
    attack_digits(out, settings, range(6))
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


def _without_a_vote(row: Row) -> Row:
    counts = list(row["counts"])
    counts[max(range(10), key=lambda k: counts[k])] -= 1
    return {"counts": counts}


FORGERIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "prediction": (lambda row: {"prediction": (row["prediction"] + 2) % 10}, "prediction is"),
    "outcome": (lambda row: {"outcome": "robust"}, "outcome is 'robust'"),
    "unknown outcome": (lambda row: {"outcome": "fine"}, "outcome is 'fine'"),
    "distance": (lambda row: {"distance": 2 * row["eps"]}, "is not between 0 and"),
    "votes": (lambda row: {"counts": [1000, *row["counts"][1:]]}, "counts sum to"),
    "settings": (lambda row: {"n": 501}, "n is 501"),
    "alarm": (lambda row: {"alarm": True}, "alarm is True"),
    "radius": (lambda row: {"certified_radius": 9.0}, "certified_radius is 9.0"),
    "image": (lambda row: {"attacked_image": "AAAA"}, "attacked image"),
    "level": (lambda row: {"judge_alpha": 0.5}, "judge_alpha is"),
    "run": (lambda row: {"run": "0" * 16}, "another config"),
    "index": (lambda row: {"index": 77}, "is not of this run"),
    "votes left out": (lambda row: {"counts": [0] * 10}, "counts sum to 0, n is 500"),
    "one vote less": (_without_a_vote, "counts sum to 499, n is 500"),
    "tries": (
        lambda row: {"tries": 10**6, "judge_alpha": row["alpha"] / 10**6},
        "tries is 1000000",
    ),
    "seed of no attempt": (lambda row: {"judge_seed": 12345}, "judge_seed is 12345"),
    "classes": (lambda row: {"counts": [*row["counts"], 0]}, "counts are of 11 classes"),
    "label": (lambda row: {"label": 99}, "label is 99, not one of 10 classes"),
    "time": (lambda row: {"seconds": -1.0}, "seconds is -1.0, below 0"),
    "gradients": (lambda row: {"gradients": "guessed"}, "gradients are 'guessed'"),
    "rows of a pass": (lambda row: {"surrogate_rows": 5000}, "surrogate_rows is 5000"),
    "certified where none were given": (
        lambda row: {"certified_radius": 0.0},
        "certified_radius is 0.0",
    ),
    "attacked though wrong": (
        lambda row: {"clean_prediction": (row["label"] + 1) % 10, "outcome": "wrong"},
        "tries is",
    ),
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


def test_a_broken_image_stays_broken_in_the_same_way(tmp_path: Path) -> None:
    """It is not attacked again at larger radii."""
    shipped = Path(__file__).parents[2] / "results" / "attacks" / "rand-resnet20"
    with gzip.open(shipped / "attacks.jsonl.gz") as stream:
        rows = [json.loads(line) for line in stream]
    later = next(
        row
        for before, row in itertools.pairwise(rows)
        if before["index"] == row["index"] and before["outcome"] == row["outcome"] == "broken"
    )
    later["distance"] *= 0.99
    with pytest.raises(CheckFailed, match=r"distance is .*, but .* at"):
        verify_attacks(_copy(shipped, tmp_path / "run", rows))


def _certified(attacked: Path, tmp_path: Path, forge: Callable[[list[Row]], None]) -> Path:
    """The run as if certificates had been given to it: radii that no break contradicts."""
    config = read_config(attacked)
    rows = _rows(attacked)
    nearest: dict[int, float] = {}
    for row in rows:
        if row["outcome"] == "broken":
            nearest[row["index"]] = min(row["distance"], nearest.get(row["index"], 9.0))
    for row in rows:
        row["certified_radius"] = nearest.get(row["index"], 1.0) / 2
    radii = {row["index"]: row["certified_radius"] for row in rows}
    config |= {"certificates": "f" * 16, "certified": digest_of_radii(radii)}
    forge(rows)
    for row in rows:
        row["run"] = run_tag(config)
    return _copy(attacked, tmp_path / "run", rows, config=to_toml(config))


def _changed(change: Callable[[float], float | None], *places: int) -> Callable[[list[Row]], None]:
    def forge(rows: list[Row]) -> None:
        for row in (rows[place] for place in places or range(len(rows))):
            row["certified_radius"] = change(row["certified_radius"])

    return forge


def test_certified_radii_are_those_given(attacked: Path, tmp_path: Path) -> None:
    assert verify_attacks(_certified(attacked, tmp_path, lambda rows: None)).alarms == 0


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (_changed(lambda _: None, 3), r"line 4 \(index 1\): certified_radius is None, but"),
        (_changed(lambda own: own / 2, 3), r"line 4 \(index 1\): certified_radius is 0\.\d+, but"),
        (_changed(lambda _: None, 2, 3), "are not those that the attack was given"),
        (_changed(lambda _: None), "are not those that the attack was given"),
    ],
)
def test_certified_radii_that_were_dropped_or_changed(
    attacked: Path, tmp_path: Path, forge: Callable[[list[Row]], None], said: str
) -> None:
    with pytest.raises(CheckFailed, match=said):
        verify_attacks(_certified(attacked, tmp_path, forge))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": 7}, "images is 7, but indices name 6"),
        ({"indices": "0:999999999999999999"}, "at most 360 test images"),
        ({"weights": [0.5, 0.5, 0.5]}, "sum 1.5"),
    ],
)
def test_configs_that_no_attack_has(
    attacked: Path, tmp_path: Path, changes: Row, said: str
) -> None:
    config = read_config(attacked) | changes
    rows = [row | {"run": run_tag(config)} for row in _rows(attacked)]
    with pytest.raises(CheckFailed, match=said):
        verify_attacks(_copy(attacked, tmp_path / "run", rows, config=to_toml(config)))


def test_a_stopped_attack_and_a_report_refuse_what_verify_refuses(
    attacked: Path, tmp_path: Path
) -> None:
    rows = _rows(attacked)[:4]
    rows[0] |= _without_a_vote(rows[0])
    out = _copy(attacked, tmp_path / "run", rows)
    with pytest.raises(BadInput, match="counts sum to 499"):
        write_report([out], tmp_path / "report")
    before = (out / "attacks.jsonl").read_bytes()
    with pytest.raises(BadInput, match=r"line 1 \(index 0\): counts sum to 499.*restore"):
        attack_digits(out, AttackConfig.read(attacked).settings, range(6))
    assert (out / "attacks.jsonl").read_bytes() == before
