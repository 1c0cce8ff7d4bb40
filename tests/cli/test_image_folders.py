"""Certifying and attacking a folder of photos: files that cannot be read, other contents."""

import shutil
import warnings
from pathlib import Path

import pytest
from PIL import Image

from sween.data import load_dataset
from sween.records import read_certificates
from sween.run_folder import read_config
from sween.training import TrainConfig, train
from tests.cli.command import Outcome, assert_refused, run_line, succeed
from tests.cli.mounting import mounted
from tests.cli.photos import CLASSES, PER_CLASS, val_file, write_photos
from tests.data.test_images import png

TEST_IMAGES = len(CLASSES) * PER_CLASS


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on the photos; bright enough classes are told apart in seconds."""
    base = tmp_path_factory.mktemp("photos")
    photos = load_dataset("image_folder", write_photos(base / "root"), image_size=8)
    config = TrainConfig(
        dataset="image_folder",
        arch="digits-mlp",
        sigma=0.25,
        epochs=20,
        batch_size=9,
        learning_rate=0.1,
    )
    train(config, photos, base / "run", quiet=True)
    return base / "run"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The photos, without those to train on."""
    shutil.rmtree(write_photos(tmp_path / "root") / "train")
    return tmp_path / "root"


def line_of(network: Path, root: Path, out: Path, *options: str, verb: str = "certify") -> str:
    if verb == "attack":
        options = (*options, "--attack pgd --eps 0.25 --samples 4 --steps 2 --n 200")
    else:
        options = (*options, "--n 200")
    return f"{verb} {network} --data-root {root} --quiet --out {out} {' '.join(options)}"


def run_warned(line: str) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        return run_line(line)


def test_certifying_needs_no_training_images(network: Path, root: Path, tmp_path: Path) -> None:
    (root / "train").mkdir()
    (root / "train" / "notes.txt").write_text("not a class, and not looked at")
    succeed(line_of(network, root, tmp_path / "out", "--every 2"))
    rows = read_certificates(tmp_path / "out")
    assert [(row.index, row.label) for row in rows] == [
        (index, index // PER_CLASS) for index in range(0, TEST_IMAGES, 2)
    ]
    assert any(row.correct for row in rows)
    succeed(f"verify {tmp_path}/out")
    shutil.rmtree(root / "train")
    line = f"weigh {network} --data-root {root} --out {tmp_path}/ensemble"
    assert_refused(line, "training images", "got none", "train/<class>/", watched=(tmp_path,))


@pytest.mark.parametrize("crops", ["", " --augmentation resized-crop-flip"])
def test_what_cannot_be_trained_on_is_one_line(
    crops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "0")
    root = write_photos(tmp_path / "photos")
    line = f"train --dataset image_folder --data-root {root} --image-size 8 --sigma 0.25 --quiet"
    line += f" --arch digits-mlp --epochs 1 --batch-size 2 --out {tmp_path}/out{crops}"
    Image.new("RGB", (1, 1), (9, 9, 9)).save(root / "train/cat/0.png")  # fine: one colour
    photo = (root / "train/dog/0.png").read_bytes()
    (root / "train/dog/0.png").write_bytes(png(20_000, 20_000, 8, b""))
    assert_refused(line, "dog/0.png", "a decompression bomb", watched=(tmp_path,))
    (root / "train/dog/0.png").write_bytes(photo)
    for part in ("train", "val"):
        (root / part).rename(tmp_path / part)
        (root / part / "cat").mkdir(parents=True)
        for name in ("0.png", "1.png"):
            shutil.copy(tmp_path / part / "cat" / name, root / part / "cat" / name)
    assert_refused(line, "expected 2 or more", "got cat", watched=(tmp_path,))
    shutil.rmtree(root / "train/cat")
    assert_refused(line, str(root / "train"), "an empty folder", watched=(tmp_path,))
    for part in ("train", "val"):
        shutil.rmtree(root / part)
        (tmp_path / part).rename(root / part)
    (tmp_path / "cache").mkdir()
    with mounted(tmp_path / "cache", ["-t", "tmpfs", "-o", "size=4k", "tmpfs"]):
        (tmp_path / "cache" / "fill").write_bytes(bytes(4096))
        assert_refused(line, "no space left", "SWEEN_CACHE", watched=(tmp_path,))
    succeed(line)


def test_training_converts_images_only_if_asked(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    Image.new("L", (8, 8)).save(root / "train/dog/0.png")
    line = (
        f"train --dataset image_folder --data-root {root} --image-size 8 --arch digits-mlp "
        f"--sigma 0.5 --epochs 1 --quiet --out {tmp_path}/out"
    )
    assert_refused(line, "dog/0.png", "mode L", "--convert", watched=(tmp_path,))
    succeed(f"{line} --convert")


@pytest.mark.parametrize(
    ("indices", "warned"),
    [
        ("0:3", "3 images are of 1 of 3 classes (cat)"),
        ("8:12", "4 images are of 1 of 3 classes (emu)"),
        ("2:6", None),
        ("5", None),
    ],
)
def test_the_first_images_of_a_class_ordered_folder(
    indices: str, warned: str | None, network: Path, root: Path, tmp_path: Path
) -> None:
    code, _, stderr = run_warned(line_of(network, root, tmp_path / "out", f"--indices {indices}"))
    assert code == 0
    if warned is None:
        assert stderr == ""
        return
    assert stderr.startswith(f"sween: warning: these {warned}")
    assert f"--every {TEST_IMAGES // (4 if ':12' in indices else 3)} takes" in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize("verb", ["certify", "attack"])
def test_an_unreadable_image_is_named_or_left_out(
    verb: str, network: Path, root: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    val_file(root, 1).write_bytes(b"not asked for")
    val_file(root, 3).unlink()
    val_file(root, 3).symlink_to("nowhere.png")
    succeed(line_of(network, root, whole, "--every 2", verb=verb))
    val_file(root, 4).write_bytes(b"no photo")
    line = line_of(network, root, tmp_path / "out", "--every 2", verb=verb)
    named = f"image 4, {val_file(root, 4)}"
    assert_refused(line, named, "leave such images out with --skip-unreadable", watched=(tmp_path,))
    code, _, stderr = run_warned(f"{line} --skip-unreadable")
    assert code == 0
    assert stderr.startswith(f"sween: warning: 1 of 6 images left out: {named}")
    config = read_config(tmp_path / "out")
    kept = [0, 2, 6, 8, 10]
    assert (config["indices"], config["images"], config["skipped"]) == ("0,2,6:11:2", 5, "4")
    assert "skipped" not in read_config(whole)
    succeed(f"verify {tmp_path}/out")
    if verb == "certify":
        before = {row.index: row.estimation_counts for row in read_certificates(whole)}
        rows = read_certificates(tmp_path / "out")
        assert [row.index for row in rows] == kept
        assert all(row.estimation_counts == before[row.index] for row in rows)


def test_none_of_the_images_can_be_read(network: Path, root: Path, tmp_path: Path) -> None:
    for position in (0, 6):
        val_file(root, position).write_bytes(b"no photo")
    line = line_of(network, root, tmp_path / "out", "--every 6", "--skip-unreadable")
    assert_refused(line, "image 0, ", "1 more like it", watched=(tmp_path,))


def swap(root: Path, first: int, second: int) -> None:
    """Exchange two images of one size under each other's names: names and sizes stay."""
    one, two = val_file(root, first).read_bytes(), val_file(root, second).read_bytes()
    size = max(len(one), len(two))
    # What follows the end of a PNG is not read.
    val_file(root, first).write_bytes(two.ljust(size, b"\0"))
    val_file(root, second).write_bytes(one.ljust(size, b"\0"))


def stopped(out: Path) -> None:
    """A folder as a run leaves it that was stopped after its first row."""
    rows = out / "certificates.jsonl"
    rows.write_text(rows.read_text().splitlines(keepends=True)[0])


@pytest.mark.parametrize("change", ["contents", "repaired", "broken"])
def test_a_folder_that_changed_is_not_resumed(
    change: str, network: Path, root: Path, tmp_path: Path
) -> None:
    swap(root, 0, 6)
    good = val_file(root, 8).read_bytes()
    if change == "repaired":
        val_file(root, 8).write_bytes(bytes(len(good)))
    out = tmp_path / "out"
    line = line_of(network, root, out, "--every 2", "--skip-unreadable")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        succeed(line)
        stopped(out)
        if change == "contents":
            swap(root, 0, 6)
        else:
            val_file(root, 8).write_bytes(good if change == "repaired" else bytes(len(good)))
        parts = ["contents "] + (["skipped", "images"] if change != "contents" else [])
        assert_refused(line, "another config", *parts, watched=(out,))


def test_other_images_than_those_certified_are_neither_attacked_nor_reported(
    network: Path, root: Path, tmp_path: Path
) -> None:
    swap(root, 0, 6)
    succeed(line_of(network, root, tmp_path / "known", "--every 2"))
    known = f"--every 4 --certificates {tmp_path}/known"
    attack = line_of(network, root, tmp_path / "out", known, verb="attack")
    report = f"report {tmp_path}/known --data-root {root} --out {tmp_path}/report"
    swap(root, 0, 6)
    watched = (tmp_path / "known",)
    assert_refused(attack, "certificates of the classifier", "contents ", watched=watched)
    assert_refused(report, "those that known certified (contents", watched=watched)
    swap(root, 0, 6)
    succeed(attack)
    succeed(report)
