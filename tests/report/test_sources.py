"""The input of a report: folders, logs and images; bad input is refused in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from PIL import Image
from scipy.io import savemat
from torch import nn

import sween
from sween.data import load_dataset
from sween.errors import CheckpointError, DataError, SweenError
from sween.report import LogFormat, write_report
from sween.sampling import CertifySettings
from sween.smoothing.dataset import iter_certificates
from tests.evaluation.certificates import certificate
from tests.report.folders import (
    DIGITS,
    WITH_MEMBERS,
    ensemble_rows,
    read_csv,
    write_log,
    write_run,
    write_trained,
)
from tests.report.page.samples import read_report


def _refused(folders: list[Path], out: Path, **options: Any) -> str:
    with pytest.raises(SweenError) as caught:
        write_report(folders, out, **options)
    assert not out.exists(), "nothing half-written"
    (line,) = str(caught.value).splitlines()
    return line


def test_a_report_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report([write_run(tmp_path / "first", ensemble_rows(), **WITH_MEMBERS)], out)
    (out / "mine.txt").write_text("kept")
    write_report([write_trained(tmp_path / "trained")], out)
    assert {path.name for path in out.iterdir()} == {
        *("mine.txt", "report-files.json", "report.html", "report.md", "cost.csv", "cost.tex"),
    }
    assert read_report(out / "report.md")["runs"] == []


def test_only_files_of_a_report_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report([write_trained(tmp_path / "trained")], out)
    listing = out / "report-files.json"
    content = json.loads(listing.read_text())
    names = ["../secret.md", 3, "own.txt", "folder.md", "old.png"]
    listing.write_text(json.dumps({**content, "files": [*content["files"], *names]}))
    (tmp_path / "secret.md").write_text("kept")
    (out / "own.txt").write_text("kept")
    (out / "folder.md").mkdir()
    (out / "old.png").write_text("goes")
    write_report([write_trained(tmp_path / "another")], out)
    assert (tmp_path / "secret.md").exists()
    assert (out / "own.txt").exists()
    assert (out / "folder.md").exists()
    assert not (out / "old.png").exists()
    assert "report.md" in json.loads(listing.read_text())["files"]


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"files": ["photo.png"], "mine": 1}'])
def test_a_listing_that_no_report_wrote_is_left_alone(tmp_path: Path, content: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report-files.json").write_text(content)
    (out / "photo.png").write_text("kept")
    with pytest.raises(SweenError, match="the listing of an earlier report"):
        write_report([write_trained(tmp_path / "trained")], out)
    assert {path.name for path in out.iterdir()} == {"report-files.json", "photo.png"}
    assert (out / "report-files.json").read_text() == content


def test_names_that_make_the_same_file_are_refused(tmp_path: Path) -> None:
    rows = [certificate(0, 0.5, radius_cohen=0.5, radius_two_class=0.7)]
    runs = [write_run(tmp_path / name, rows) for name in ("x", "two-class-x")]
    assert "curve-two-class-x.png" in _refused(runs, tmp_path / "out")
    folders = [write_run(tmp_path / name, rows) for name in ("b-c", "c")]
    logs = [write_log(tmp_path / name, (0, 1, "0.5")) for name in ("a.tsv", "a-b.tsv")]
    assert "beside-a-b-c.csv" in _refused([*folders, *logs], tmp_path / "out")


def test_logs_of_similar_names_stay_apart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)])
    logs = [write_log(tmp_path / f"sigma_{sigma}", (0, 1, "0.5")) for sigma in ("0.25", "0.50")]
    write_report([run, *logs], tmp_path / "out")
    assert len(list((tmp_path / "out").glob("beside-*.csv"))) == 2
    savemat(tmp_path / "log.mat", {"hard": [0.5]})
    both = [run, write_log(tmp_path / "log.tsv", (0, 1, "0.5")), tmp_path / "log.mat"]
    assert "log 2 times" in _refused(both, tmp_path / "double", log_format=LogFormat(start=0))


def test_a_log_compared_with_a_two_class_run_is_judged_by_cohens_bound(tmp_path: Path) -> None:
    rows = [
        certificate(0, 0.9, bound="two-class", radius_cohen=0.25, radius_two_class=0.9),
        certificate(1, 0.9, bound="two-class", radius_cohen=0.0, radius_two_class=0.9),
    ]
    run = write_run(tmp_path / "run", rows, bound="two-class")
    log = write_log(tmp_path / "log.tsv", (0, 1, "0.50"), (1, -1, "0.0"))
    report = write_report([run, log], tmp_path / "out")
    assert "| net | 50.0 | 50.0 |" in report.read_text()
    images = read_csv(report, "beside-log-run")
    assert [row["prediction"] for row in images] == ["1", "-1"]
    assert [row["radius"] for row in images] == ["0.25", "0.0"]


def test_trainings_of_one_name_and_of_own_networks_are_listed(tmp_path: Path) -> None:
    folders = [
        write_trained(tmp_path / "a" / "net", sigma=0.25),
        write_trained(tmp_path / "b" / "net", seed=7, arch="mine:Net"),
        write_trained(tmp_path / "c" / "photos", dataset="image_folder"),
    ]
    text = write_report(folders, tmp_path / "out").read_text()
    assert "| net | 0.25 | digits-mlp | gaussian | 0 | " in text
    assert "| net | 0.50 | mine:Net | gaussian | 7 | - | - | 1 | 2 |" in text


@pytest.mark.parametrize(
    ("metrics", "changes", "said"),
    [
        ('{"epoch": 0}', {}, "metrics.jsonl, line 1"),
        ('{"epoch": 0, "seconds": "x"}', {}, "seconds"),
        ('{"epoch": 0, "seconds": true}', {}, "seconds"),
        ('{"seconds": 1}', {"sigma": "x"}, "config.toml: sigma"),
        ('{"seconds": 1}', {"method": 3}, "config.toml: method"),
    ],
)
def test_damaged_trainings(
    tmp_path: Path, metrics: str, changes: dict[str, Any], said: str
) -> None:
    assert said in _refused([write_trained(tmp_path / "net", metrics, **changes)], tmp_path / "out")


def test_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", [certificate(0)]), tmp_path / "report"
    assert "at least one run folder" in _refused([], out)
    assert "run 2 times" in _refused([run, run], out)
    assert "no such folder" in _refused([tmp_path / "nowhere"], out)
    empty = write_run(tmp_path / "empty", [certificate(0)])
    (empty / "certificates.jsonl").write_text("")
    assert "empty: certificates: expected at least one" in _refused([empty], out)
    with pytest.raises(SweenError, match="a folder, got a file"):
        write_report([run], run / "config.toml")
    path = run / "certificates.jsonl"
    text = path.read_text(encoding="utf-8").replace('"radius": 0', '"radius": 9', 1)
    path.write_text(text, encoding="utf-8")
    assert "sween verify" in _refused([run], out)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_environment_is_refused(content: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0)])
    (run / "environment.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"environment\.json"):
        write_report([run], tmp_path / "report")


def test_runs_on_different_images_are_not_compared(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [certificate(0, 0.5)])
    two = write_run(tmp_path / "two", [certificate(1, 0.5)])
    said = _refused([one, two], tmp_path / "report")
    assert "got image 0 in only one of them" in said
    assert "different_images=True" in said
    assert "two" in write_report([one, two], tmp_path / "report", different_images=True).read_text()
    # Every folder of images has the same name; what was certified is known by its pixels.
    folder: dict[str, Any] = {"dataset": "image_folder"}
    three = write_run(tmp_path / "three", [certificate(0, 0.5)], data="1" * 64, **folder)
    four = write_run(tmp_path / "four", [certificate(0, 0.5)], data="2" * 64, **folder)
    assert f"data {'2' * 64}, not {'1' * 64}" in _refused([three, four], tmp_path / "other")


def test_images_of_another_data_set_are_refused(tmp_path: Path) -> None:
    data = load_dataset("digits").test.pixels.fingerprint()
    good = write_run(tmp_path / "good", [certificate(0, 0.5)], data=data, **DIGITS)
    write_report([good], tmp_path / "report")
    bad = write_run(tmp_path / "bad", [certificate(0, 0.5)], data="0" * 64, **DIGITS)
    assert "test images of digits" in _refused([bad], tmp_path / "other")


class Listed(torch_data.Dataset[tuple[torch.Tensor, int]]):
    """A caller's data set of floats, which says its labels item by item."""

    classes = ("cat", "dog")

    def __init__(self, seed: int = 0, channels: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.rand(8, channels, 8, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], index % 2


@pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")
@pytest.mark.parametrize("channels", [3, 2])
def test_images_of_a_callers_data_set_are_shown_where_it_is_given(
    channels: int, tmp_path: Path
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 2))
    smoothed = sween.SmoothedClassifier(network, sigma=0.5, num_classes=2)
    data, name = Listed(channels=channels), "my: data/1"
    run = tmp_path / "run"
    options: dict[str, Any] = {"indices": [1, 2, 5], "name": name, "quiet": True}
    list(iter_certificates(smoothed, data, out=run, settings=CertifySettings(n=100), **options))
    content = read_report(write_report([run], tmp_path / "with", datasets={name: data}))
    if channels == 2:
        assert content["pictures"] == [], "neither grey nor colours"
        return
    assert read_report(write_report([run], tmp_path / "without"))["pictures"] == []
    assert len(content["pictures"]) == 3
    assert content["runs"][0]["classes"] == ["cat", "dog"]
    assert (tmp_path / "with" / "noise-run.png").is_file()
    said = _refused([run], tmp_path / "other", datasets={name: Listed(seed=1)})
    assert "those that run certified" in said
    assert "did you mean" in _refused([run], tmp_path / "other", datasets={"my data": data})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """An image folder of two classes, with two test images each."""
    generator = np.random.default_rng(0)
    for place in (f"{split}/{label}" for split in ("train", "val") for label in ("cat", "dog")):
        (tmp_path / "photos" / place).mkdir(parents=True)
        for number in range(2):
            pixels = generator.integers(0, 256, (100, 90, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / place / f"{number}.png")
    return tmp_path / "photos"


def _folder_run(folder: Path, photos: Path, size: int, count: int = 4, **changes: Any) -> Path:
    dataset = load_dataset("image_folder", photos, image_size=size)
    config = {"dataset": "image_folder", **dataset.options}
    config["data"] = dataset.test.pixels.fingerprint()
    rows = [certificate(index, 0.5, label=index // 2) for index in range(count)]
    return write_run(folder, rows, **{**config, **changes})


def test_photos_are_shown_at_the_size_they_were_certified(tmp_path: Path, photos: Path) -> None:
    small, large = (_folder_run(tmp_path / f"at{size}", photos, size) for size in (32, 80))
    report = write_report([small, large], tmp_path / "out", data_root=photos, different_images=True)
    content = read_report(report)
    assert content["runs"][0]["classes"] == ["cat", "dog"]
    for run, size, kind in zip(content["runs"], (32, 80), ("png", "jpeg"), strict=True):
        assert run["gallery"]["shape"] == [3, size, size]
        urls = {content["pictures"][number] for number in run["gallery"]["picture"]}
        assert len(urls) == 4
        assert all(url.startswith(f"data:image/{kind};base64,") for url in urls)
    drawn = {path.name for path in (tmp_path / "out").glob("noise-*.png")}
    assert drawn == {"noise-at32.png", "noise-at80.png"}
    Image.new("RGB", (50, 50)).save(photos / "val" / "cat" / "0.png")
    assert "those that at32 certified" in _refused([small], tmp_path / "new", data_root=photos)
    more = _folder_run(tmp_path / "more", photos, 32, count=5)
    assert "less than 4" in _refused([more], tmp_path / "new", data_root=photos)


@pytest.mark.parametrize("options", [{"image_size": "x"}, {"convert": "yes"}])
def test_a_config_that_does_not_say_how_to_read_shows_no_images(
    tmp_path: Path, photos: Path, options: dict[str, Any]
) -> None:
    run = _folder_run(tmp_path / "run", photos, 32, **options)
    content = read_report(write_report([run], tmp_path / "out", data_root=photos))
    assert content["runs"][0]["gallery"]["picture"] == [None] * 4


def test_one_root_has_the_files_of_one_data_set(tmp_path: Path, photos: Path) -> None:
    folder = _folder_run(tmp_path / "photo-run", photos, 32)
    cifar = write_run(tmp_path / "cifar-run", [certificate(0, 0.5)], dataset="cifar10")
    content = read_report(write_report([folder, cifar], tmp_path / "out", data_root=photos))
    pictures = [run["gallery"]["picture"] for run in content["runs"]]
    assert None not in pictures[0]
    assert pictures[1] == [None]
    with pytest.raises(DataError):
        write_report([cifar], tmp_path / "other", data_root=photos)


def test_soft_radii_of_a_mat_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)])
    savemat(tmp_path / "log.mat", {"hard": np.array([0.25]), "soft": np.array([0.4375])})
    for votes, radius in (("hard", "0.250"), ("soft", "0.437")):
        form = LogFormat(start=0, votes=votes)  # type: ignore[arg-type]
        text = write_report([run, tmp_path / "log.mat"], tmp_path / votes, log_format=form)
        (line,) = (line for line in text.read_text().splitlines() if "log (log)" in line)
        assert f"| {radius} |" in line
