"""Merged shards are the run of one machine; parts that do not belong together are refused."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sween
from sween.errors import BadInput
from sween.runs import (
    AttackRun,
    CertificationRun,
    Shard,
    merge_runs,
    shards_left,
    verify_attacks,
    verify_folder,
)
from sween.runs.pilots import PilotRun, read_plans
from sween.smoothing import recount_folder
from tests.attack.quick import QUICK, attack
from tests.cli.command import listing
from tests.cli.forging import Forgery
from tests.runs.sharding import BUDGET, FIXED, MODES, Mode, all_shards, assert_same_run


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_merged_shards_are_the_run_of_one_machine(mode: Mode, count: int, tmp_path: Path) -> None:
    whole = mode.certify(tmp_path / "whole")
    folders = mode.finished_shards(tmp_path / "parts", count)
    merged = merge_runs(reversed(folders), tmp_path / "merged")
    assert_same_run(tmp_path / "merged", tmp_path / "whole")
    assert verify_folder(tmp_path / "merged").images == mode.images
    assert merged.run is not None
    assert len(merged.run.rows) == len(whole.rows)
    assert not merged.already
    before = listing(tmp_path)
    assert merge_runs(folders, tmp_path / "merged").already
    assert listing(tmp_path) == before


def test_shards_may_be_put_in_order_while_they_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FIXED.certify(tmp_path / "whole")
    folders = FIXED.finished_shards(tmp_path / "parts", 2)
    read_file = CertificationRun.read_file

    def read_and_turn(file: Path, *rest: Any) -> CertificationRun:
        run = read_file(file, *rest)
        file.write_bytes(b"".join(reversed(file.read_bytes().splitlines(keepends=True))))
        return run

    monkeypatch.setattr(CertificationRun, "read_file", read_and_turn)
    merge_runs(folders, tmp_path / "merged")
    assert_same_run(tmp_path / "merged", tmp_path / "whole")


def test_merged_shards_of_an_attack_are_the_run_of_one_machine(tmp_path: Path) -> None:
    attack(tmp_path / "whole", QUICK)  # ten images in batches of four
    folders = [tmp_path / "1", tmp_path / "2"]
    for shard, folder in zip(all_shards(2), folders, strict=True):
        attack(folder, QUICK, shard=shard)
    assert AttackRun.read(folders[0], part=True).indices == (0, 1, 2, 3, 8, 9)
    assert verify_attacks(folders[1]).shard == Shard(2, 2)
    merge_runs(folders, tmp_path / "merged")
    assert_same_run(tmp_path / "merged", tmp_path / "whole", "attacks.jsonl")
    verify_attacks(tmp_path / "merged")
    with pytest.raises(BadInput, match="at most 3 shards, since there are 3 batches"):
        attack(tmp_path / "fourth", QUICK, shard=Shard(1, 4))
    assert not (tmp_path / "fourth").exists()


@pytest.fixture(scope="module")
def _parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return FIXED.finished_shards(tmp_path_factory.mktemp("parts"), 5)


@pytest.fixture
def parts(_parts: list[Path], tmp_path: Path) -> list[Path]:
    """Five complete shards, to be altered."""
    return [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in _parts]


def refused(folders: list[Path], *said: str) -> None:
    """The merge is refused in one line, and nothing is written."""
    out = folders[0].with_name("out")
    before = listing(out.parent)
    with pytest.raises(BadInput) as caught:
        merge_runs(folders, out)
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)
    assert listing(out.parent) == before


def cut(folder: Path, rows: int, file: str = "certificates.jsonl") -> Path:
    """Take the last rows away."""
    lines = (folder / file).read_bytes().splitlines(keepends=True)
    (folder / file).write_bytes(b"".join(lines[:-rows]))
    return folder


def test_missing_and_unfinished_shards_are_named(parts: list[Path]) -> None:
    cut(parts[0], 6)  # five rows an image
    cut(parts[4], 1)
    refused(
        [parts[0], parts[1], parts[4]],
        "missing 3/5 and 4/5",
        f"1/5 unfinished (2 of 3 images left in {parts[0]})",
        f"5/5 unfinished (1 of 2 images left in {parts[4]})",
    )
    assert shards_left([parts[0], parts[1], parts[4]]) == [1, 3, 4, 5]
    assert shards_left(parts) == [1, 5]


def test_folders_of_shards_that_have_not_started_may_be_named(parts: list[Path]) -> None:
    shutil.rmtree(parts[2])
    (parts[3] / "config.toml").unlink()
    refused(parts, "missing 3/5 and 4/5")
    assert shards_left(parts) == [3, 4]
    none = [parts[0].with_name(f"none{number}") for number in range(3)]
    assert shards_left(none) == [1, 2, 3]
    with pytest.raises(BadInput, match="expected the folders of all shards"):
        merge_runs(none, parts[0].with_name("out"))


def test_a_shard_comes_once(parts: list[Path]) -> None:
    copy = Path(shutil.copytree(parts[1], parts[1].with_name("copy")))
    refused([*parts, copy], "shard 2/5: expected each shard once", f"{parts[1]} and {copy}")
    refused([*parts, parts[1]], "each shard once")


def test_shards_of_another_split_are_refused(parts: list[Path]) -> None:
    (parts[2] / "shard.json").write_text('{"number": 3, "count": 4}')
    refused(parts, f"{parts[2]}: expected one of 5 shards", "got shard 3/4")


def test_shards_of_another_run_are_refused(parts: list[Path]) -> None:
    for key, value in (("n", 100), ("fingerprint", "0" * 64), ("device", "cuda")):
        config = (parts[2] / "config.toml").read_text()
        Forgery(parts[2]).configure(**{key: value})
        refused(parts, f"{parts[2]} is a shard of another run than {parts[0]} ({key}")
        (parts[2] / "config.toml").write_text(config)


def test_a_whole_run_is_not_a_shard(parts: list[Path]) -> None:
    (parts[2] / "shard.json").unlink()
    refused(parts, f"{parts[2]}: expected the folder of a shard, got a whole run")


@pytest.mark.parametrize(("name", "value"), [("sween", "0.0.1"), ("torch", "1.0")])
@pytest.mark.parametrize("file", ["environment.json", "environment-2.json"])
def test_other_versions_are_refused(name: str, value: str, file: str, parts: list[Path]) -> None:
    environment = json.loads((parts[3] / "environment.json").read_text())
    (parts[3] / file).write_text(json.dumps(environment | {name: value}))
    refused(parts, f"{parts[3] / file}: {name}: expected", f"got {value}")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_shard_without_its_environment_is_refused(content: str | None, parts: list[Path]) -> None:
    file = parts[3] / "environment.json"
    file.unlink() if content is None else file.write_text(content)
    refused(parts, f"{file}: expected versions and hardware")


def test_the_environments_of_all_machines_are_kept(parts: list[Path], tmp_path: Path) -> None:
    environment = json.loads((parts[3] / "environment.json").read_text())
    for number in (1, 3):
        other = environment | {"platform": "another one"}
        (parts[number] / "environment.json").write_text(json.dumps(other))
    merge_runs(parts, tmp_path / "out")
    found = sorted((tmp_path / "out").glob("environment*.json"))
    assert [file.name for file in found] == ["environment-2.json", "environment.json"]
    assert json.loads(found[0].read_text())["platform"] == "another one"


def test_gpus_are_of_one_kind_if_they_certified(parts: list[Path], tmp_path: Path) -> None:
    environment = json.loads((parts[3] / "environment.json").read_text())
    (parts[3] / "environment.json").write_text(json.dumps(environment | {"gpu": "another"}))
    merge_runs(parts, tmp_path / "merged")  # certified by CPUs
    for part in parts:
        Forgery(part).configure(device="cuda")
    refused(parts, "environment.json: gpu: expected", "got another")


def test_damaged_rows_are_refused(parts: list[Path]) -> None:
    rows = parts[1] / "certificates.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"label": ', b'"label": 1', 1))
    refused(parts, "line 1 (index 1)", "checksum")


def test_compressed_rows_are_merged_too(parts: list[Path], tmp_path: Path) -> None:
    merge_runs(parts, tmp_path / "plain")
    rows = parts[1] / "certificates.jsonl"
    rows.with_name("certificates.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes()))
    rows.unlink()
    assert merge_runs(parts, tmp_path / "plain").already


def test_a_folder_with_something_else_is_left_alone(parts: list[Path], tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merge_runs(parts, merged)
    changes: list[Callable[[Path], object]] = [
        lambda out: (out / "certificates.jsonl").write_bytes(b""),
        lambda out: cut(out, 1),
        lambda out: (out / "certificates.jsonl").unlink(),
        lambda out: (out / "config.toml").write_text("n = 3\n"),
        lambda out: (out / "config.toml").rename(cut(out, 1) / "old.toml"),
        lambda out: (out / "config.toml").rename(out / "shard.json").write_text('{"count": 1}'),
    ]
    for number, change in enumerate(changes):
        out = Path(shutil.copytree(merged, tmp_path / f"other{number}"))
        change(out)
        before = listing(out)
        with pytest.raises(BadInput, match=re.escape(str(out))):
            merge_runs(parts, out)
        assert listing(out) == before
    before = listing(tmp_path)
    with pytest.raises(BadInput, match="got another run"):
        merge_runs(parts, parts[0])
    assert listing(tmp_path) == before


@pytest.fixture(scope="module")
def _pilots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return BUDGET.shards(tmp_path_factory.mktemp("pilots"), 2)


@pytest.fixture
def pilots(_pilots: list[Path], tmp_path: Path) -> list[Path]:
    """Two shards with their pilot votes, to be altered."""
    return [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in _pilots]


def test_shards_without_all_pilot_votes_get_no_plan(pilots: list[Path]) -> None:
    cut(pilots[1], 2, PilotRun.FILE)
    refused(pilots, f"2/2 unfinished (pilot votes on 2 of 5 images left in {pilots[1]})")
    refused(pilots[:1], "missing 2/2")
    assert shards_left(pilots) == [2]


def test_shards_with_pilot_votes_wait_for_the_merge(pilots: list[Path], tmp_path: Path) -> None:
    assert shards_left(pilots) == []
    merge_runs(pilots, tmp_path / "out")
    assert shards_left(pilots) == [1, 2]
    before = listing(tmp_path)
    assert merge_runs(pilots, tmp_path / "out").already
    assert listing(tmp_path) == before
    BUDGET.certify(pilots[0], Shard(1, 2))
    assert shards_left(pilots) == [2]
    refused(pilots, "2/2 unfinished (5 of 5 images left")
    assert {path for path in listing(tmp_path) if path not in before} == {
        pilots[0] / "certificates.jsonl"
    }


def test_the_votes_of_a_shard_are_recounted(pilots: list[Path], tmp_path: Path) -> None:
    merge_runs(pilots, tmp_path / "out")
    run = BUDGET.certify(pilots[1], Shard(2, 2))
    model, digits = sween.load("digits-sween3-gaussian-sigma0.50"), sween.load_dataset("digits")
    recounted = recount_folder(pilots[1], model, digits, quiet=True)
    assert recounted.indices == run.indices == (1, 3, 5, 7, 9)


def test_a_plan_that_some_shards_lack_is_written_again(pilots: list[Path], tmp_path: Path) -> None:
    merge_runs(pilots, tmp_path / "out")
    plan = pilots[1] / "plan.jsonl.gz"
    content = plan.read_bytes()
    plan.unlink()
    assert merge_runs(pilots, tmp_path / "out").run is None
    assert plan.read_bytes() == content
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {"n": row["n"] + 100},
        lambda row: {
            "selection_counts": [*row["selection_counts"][1:], row["selection_counts"][0]]
        },
        lambda row: {"n": None},
        lambda row: {"label": row["label"] + 1},
    ],
)
def test_a_plan_that_does_not_match_the_pilot_votes_is_refused(
    change: Callable[[dict[str, object]], dict[str, object]], pilots: list[Path], tmp_path: Path
) -> None:
    merge_runs(pilots, tmp_path / "out")
    plan = pilots[0] / "plan.jsonl.gz"
    (pilots[0] / "plan.jsonl").write_bytes(gzip.decompress(plan.read_bytes()))
    plan.unlink()
    assert read_plans(pilots[0]) is not None
    Forgery(pilots[0], "plan.jsonl").change(change, 0)
    before = listing(tmp_path)
    with pytest.raises(BadInput, match="plan"):
        BUDGET.certify(pilots[0], Shard(1, 2))
    with pytest.raises(BadInput, match="plan"):
        merge_runs(pilots, tmp_path / "out")
    assert listing(tmp_path) == before


def test_a_plan_of_other_pilot_votes_is_refused(pilots: list[Path], tmp_path: Path) -> None:
    merge_runs(pilots, tmp_path / "out")
    cut(pilots[0], 1, PilotRun.FILE)
    with pytest.raises(BadInput, match=r"it was not made from the pilot votes in pilots\.jsonl"):
        BUDGET.certify(pilots[0], Shard(1, 2))
    (pilots[0] / "plan.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(BadInput, match="expected a complete gzip file"):
        BUDGET.certify(pilots[0], Shard(1, 2))


@pytest.mark.slow
def test_sizes_other_than_the_planned_ones_are_found_by_the_merge(tmp_path: Path) -> None:
    folders = BUDGET.finished_shards(tmp_path, 2)
    small = Mode(BUDGET.settings, images=6)
    small.certify(tmp_path / "small")  # a budget for fewer images is spread otherwise
    rows = {row["index"]: row for row in Forgery(tmp_path / "small").rows()}
    Forgery(folders[0]).change(lambda row: rows.get(row["index"], {}))
    refused(folders, "the pilot votes of all images call for")
