"""Which part of a run a shard is, and a folder that belongs to one of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import sween
from sween.engine import ForwardPassShrunk
from sween.errors import BadInput, CheckFailed, CheckpointError
from sween.records import Certificate
from sween.runs import CertificationRun, Shard, merge_runs, verify_folder
from sween.runs.shards import read_shard
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset, pipeline
from sween.smoothing.dataset import iter_certificates
from tests.cli.command import listing
from tests.cli.forging import Forgery
from tests.runs.sharding import BUDGET, FIXED, all_shards
from tests.smoothing.small import SmallMemory


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "1/0", "x", "", "3", "1/2/3", "-1/4", "1.0/4", "1/4 ", "\u0661/4"]
)
def test_bad_shards_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput, match="shard: expected NUMBER/COUNT") as caught:
        Shard.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [True, 1.0, "1"])
def test_a_shard_has_whole_numbers(number: object) -> None:
    with pytest.raises(BadInput, match="NUMBER/COUNT"):
        Shard(number, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_every_item_is_in_one_shard_and_shards_differ_by_one_item(count: int) -> None:
    items = list(range(11))
    parts = [shard.take(items) for shard in all_shards(count)]
    assert sorted(item for part in parts for item in part) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts[0][:2] == [0, count][: len(parts[0])]
    assert Shard.parse(f"{count}/{count}") == Shard(count, count)


def test_more_shards_than_images_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for number in (1, 12):
        with pytest.raises(BadInput, match=f"at most 11 shards.*got {number}/12"):
            FIXED.certify(tmp_path / "out", Shard(number, 12))
    assert not (tmp_path / "out").exists()


def test_a_shard_s_folder_is_of_that_shard_alone(tmp_path: Path) -> None:
    run = FIXED.certify(tmp_path / "part", Shard(2, 5))
    assert run.indices == (1, 6)
    assert [row.index for row in run.certificates] == [1, 6]
    assert read_shard(tmp_path / "part") == Shard(2, 5)
    for other, got in ((Shard(1, 5), "1/5"), (Shard(2, 4), "2/4"), (None, "a whole run")):
        with pytest.raises(CheckpointError, match=f"expected.*{got}.*got shard 2/5"):
            FIXED.certify(tmp_path / "part", other)
    assert FIXED.certify(tmp_path / "part", Shard(2, 5)).rows == run.rows
    with pytest.raises(CheckpointError, match=r"got shard 2/5 of one; .*sween merge"):
        CertificationRun.read(tmp_path / "part")


def test_a_whole_run_s_folder_does_not_become_a_shard_s(tmp_path: Path) -> None:
    FIXED.certify(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"expected shard 1/2.*got a whole run"):
        FIXED.certify(tmp_path / "run", Shard(1, 2))
    assert read_shard(tmp_path / "run") is None


def test_a_row_of_another_shard_fails_the_check(tmp_path: Path) -> None:
    first, second = FIXED.shards(tmp_path, 2)
    verified = verify_folder(first)
    assert (verified.images, verified.shard) == (6, Shard(1, 2))
    shutil.copy(second / "certificates.jsonl", first / "certificates.jsonl")
    with pytest.raises(CheckFailed, match=r"index 1 .*is not of this shard \(1/2\)"):
        verify_folder(first)


def test_an_incomplete_shard_fails_the_check(tmp_path: Path) -> None:
    FIXED.certify(tmp_path / "part", Shard(1, 2))
    rows = tmp_path / "part/certificates.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(CheckFailed, match=r"1 of 30 rows of shard 1/2 are missing.*index 10"):
        verify_folder(tmp_path / "part")
    rows.unlink()
    with pytest.raises(CheckFailed, match="30 of 30 rows of shard 1/2 are missing"):
        verify_folder(tmp_path / "part")


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"number": 3, "count": 2}', '{"number": 1}'])
def test_a_damaged_mark_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "shard.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"shard\.json: expected number and count"):
        read_shard(tmp_path)


def test_a_failure_before_the_first_row_leaves_no_mark(tmp_path: Path) -> None:
    (tmp_path / "certificates.jsonl").write_text("")  # rows without a config
    with pytest.raises(CheckpointError, match=r"expected config\.toml"):
        FIXED.certify(tmp_path, Shard(1, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["certificates.jsonl"]


def test_certificates_of_a_shard_come_one_by_one(tmp_path: Path) -> None:
    digits = sween.load_dataset("digits")
    smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
    images = digits.test.images(range(7)), None  # without labels

    def found(out: str, shard: Shard | None, settings: CertifySettings) -> list[Certificate]:
        options = {"out": tmp_path / out, "shard": shard, "settings": settings, "quiet": True}
        return [*iter_certificates(smoothed, images, **options)]  # type: ignore[arg-type]

    part = found("part", Shard(3, 3), CertifySettings(n=200))
    assert [row.index for row in part] == [2, 5]
    whole = found("whole", None, CertifySettings(n=200))
    assert [row.estimation_counts for row in part] == [
        whole[index].estimation_counts for index in (2, 5)
    ]
    settings = CertifySettings(n=200, n0=100, sampling="budget", budget=2_000)
    assert found("pilots", Shard(1, 1), settings) == []
    merge_runs([tmp_path / "pilots"], tmp_path / "merged")
    assert len(found("pilots", Shard(1, 1), settings)) == 7


def test_pilot_votes_of_another_model_are_refused(tmp_path: Path) -> None:
    BUDGET.certify(tmp_path, Shard(1, 1))

    def turn(row: dict[str, Any]) -> dict[str, Any]:
        counts = row["selection_counts"]
        return {"selection_counts": [*counts[1:], counts[0]]}

    Forgery(tmp_path, "pilots.jsonl").change(turn)
    before = listing(tmp_path)
    with pytest.raises(BadInput, match=r"votes of SWEEN-3 on image 10: expected .* as recorded"):
        BUDGET.certify(tmp_path, Shard(1, 1))
    assert listing(tmp_path) == before


def test_pilot_votes_need_passes_of_one_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrink(*_: object) -> None:
        raise ForwardPassShrunk

    monkeypatch.setattr(pipeline, "count_pilots", shrink)
    with pytest.raises(BadInput, match=r"memory: expected room .* fewer `forward_rows`"):
        BUDGET.certify(tmp_path / "out", Shard(1, 2))
    assert not (tmp_path / "out").exists()


def test_pilot_votes_need_passes_of_the_shape_in_the_config(tmp_path: Path) -> None:
    smoothed = SmoothedClassifier(SmallMemory(room=50), sigma=0.5, num_classes=2, forward_rows=100)
    with pytest.raises(BadInput, match=r"memory: expected room .* fewer `forward_rows`"):
        certify_dataset(
            smoothed,
            torch.zeros(4, 1, 8, 8),
            out=tmp_path / "out",
            settings=BUDGET.settings,
            shard=Shard(1, 2),
            quiet=True,
        )
    assert not (tmp_path / "out").exists()


def test_the_mark_is_that_of_the_file(tmp_path: Path) -> None:
    BUDGET.certify(tmp_path, Shard(2, 3))
    assert json.loads((tmp_path / "shard.json").read_text()) == {"number": 2, "count": 3}
