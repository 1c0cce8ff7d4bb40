"""What the page has to show: pictures of every data set, and tables where there is no run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sween.data import load_dataset
from sween.errors import BadInput, DataError
from sween.report import LogFormat, write_report
from tests.evaluation.certificates import certificate
from tests.report.folders import write_run
from tests.report.page.samples import read_page
from tests.report.test_more_tables import OUTCOMES, SETTINGS, write_attacked


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """An image folder of two classes, with two test images each."""
    generator = np.random.default_rng(0)
    root = tmp_path / "photos"
    for split, label, number in (
        (split, label, number)
        for split in ("train", "val")
        for label in ("cat", "dog")
        for number in range(2)
    ):
        path = root / split / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (100, 90, 3), dtype=np.uint8)).save(path)
    return root


def _folder_run(folder: Path, photos: Path, size: int, **changes: Any) -> Path:
    dataset = load_dataset("image_folder", photos, image_size=size)
    config = {
        "dataset": "image_folder",
        "data": dataset.test.pixels.fingerprint(),
        **dataset.options,
        "sigma": 0.5,
        "alpha": 0.001,
    }
    rows = [certificate(index, 0.5, label=index // 2) for index in range(4)]
    return write_run(folder, rows, **{**config, **changes})


def _gallery(report: Path, run: int = 0) -> dict[str, Any]:
    gallery: dict[str, Any] = read_page(report.with_name("report.html"))[1]["runs"][run]["gallery"]
    return gallery


def test_photos_of_a_folder_are_shown_at_the_size_they_were_certified(
    tmp_path: Path, photos: Path
) -> None:
    small, large = (_folder_run(tmp_path / f"at{size}", photos, size) for size in (32, 80))
    report = write_report([small, large], tmp_path / "out", data_root=photos, different_images=True)
    content = read_page(report.with_name("report.html"))[1]
    assert content["runs"][0]["classes"] == ["cat", "dog"]
    for run, (size, kind) in enumerate(((32, "png"), (80, "jpeg"))):
        gallery = _gallery(report, run)
        assert gallery["shapes"] == [[3, size, size]]
        assert None not in gallery["picture"]
        urls = {content["pictures"][number] for number in gallery["picture"]}
        assert len(urls) == 4
        assert all(url.startswith(f"data:image/{kind};base64,") for url in urls)
    assert {path.name for path in (tmp_path / "out").glob("noise-*.png")} == {
        "noise-at32.png",
        "noise-at80.png",
    }


def test_other_photos_are_refused(tmp_path: Path, photos: Path) -> None:
    run = _folder_run(tmp_path / "run", photos, 32)
    Image.new("RGB", (50, 50)).save(photos / "val" / "cat" / "0.png")
    with pytest.raises(BadInput, match="those that run certified"):
        write_report([run], tmp_path / "out", data_root=photos)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"image_size": "x"}, {"convert": "yes"}])
def test_a_config_that_does_not_say_how_to_read_leaves_gaps(
    tmp_path: Path, photos: Path, options: dict[str, str]
) -> None:
    run = _folder_run(tmp_path / "run", photos, 32, **options)
    report = write_report([run], tmp_path / "out", data_root=photos)
    assert _gallery(report)["picture"] == [None] * 4


def test_one_root_has_the_files_of_one_data_set(tmp_path: Path, photos: Path) -> None:
    folder = _folder_run(tmp_path / "photo-run", photos, 32)
    cifar = write_run(
        tmp_path / "cifar-run", [certificate(0, 0.5)], **{**SETTINGS, "dataset": "cifar10"}
    )
    report = write_report([folder, cifar], tmp_path / "out", data_root=photos)
    assert None not in _gallery(report, 0)["picture"]
    assert _gallery(report, 1)["picture"] == [None]
    with pytest.raises(DataError):
        write_report([cifar], tmp_path / "other", data_root=photos)


def test_attacks_alone_have_a_page(tmp_path: Path) -> None:
    attacked = write_attacked(tmp_path / "pgd", OUTCOMES, images=4)
    report = write_report([attacked], tmp_path / "out")
    content = read_page(report.with_name("report.html"))[1]
    assert content["table"] is None
    assert content["runs"] == []
    (table,) = content["tables"]
    assert table["title"] == "Certified and empirical accuracy"
    radius = [column["heading"] for column in table["columns"]].index("radius")
    assert [row["cells"][radius][1] for row in table["rows"]] == [0.0, 0.25, 0.75]
    (made,) = content["others"]
    assert made["name"] == "Attack pgd"
    assert ["attack", "pgd"] in made["provenance"][0][1]


def test_the_page_has_the_tables_of_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)], **SETTINGS)
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.45\t1\t1.0\n")
    report = write_report([run, log], tmp_path / "out", radii=[0.0, 0.48])
    (table,) = read_page(report.with_name("report.html"))[1]["tables"]
    assert table["title"].endswith(" compared with log")
    texts = [[cell[0] for cell in row["cells"]] for row in table["rows"]]
    for cells in texts:
        assert f"| {' | '.join(cells)} |" in report.read_text()
    assert table["notes"][-1] in report.read_text()


def test_soft_radii_of_a_mat_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [certificate(0, 0.5)], **SETTINGS)
    savemat(tmp_path / "log.mat", {"hard": np.array([0.25]), "soft": np.array([0.4375])})
    for votes, radius in (("hard", "0.250"), ("soft", "0.437")):
        form = LogFormat(start=0, votes=votes)  # type: ignore[arg-type]
        text = write_report([run, tmp_path / "log.mat"], tmp_path / votes, log_format=form)
        (line,) = (line for line in text.read_text().splitlines() if "log (log)" in line)
        assert f"| {radius} |" in line
