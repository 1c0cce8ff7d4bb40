"""Training on data and factories that cannot be used: refused, and no run folder left behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import assert_refused, succeed

PHOTOS = (
    "train --dataset image_folder --data-root {root} --image-size 8 --arch digits-mlp "
    "--sigma 0.5 --epochs 1 --quiet --out {out}"
)
CIFAR = "train --dataset cifar10 --data-root {root} --arch resnet20 --sigma 0.5 --out {out}"
DIGITS = "train --dataset digits --arch {arch} --sigma 0.5 --epochs 1 --out {out}"


def write_photos(root: Path, names: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Two classes of 8 x 8 photos in the layout of ImageNet."""
    random = np.random.default_rng(0)
    for part, count in (("train", 3), ("val", 1)):
        for name in names:
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    return root


def saved(mode: str, suffix: str = ".png") -> Callable[[Path], None]:
    """Replaces a photo by one of another colour mode."""

    def change(root: Path) -> None:
        (root / "train/dog/0.png").unlink()
        Image.new(mode, (8, 8)).save(root / "train/dog" / f"0{suffix}")

    return change


def written(
    content: Callable[[bytes], bytes], name: str = "train/dog/0.png"
) -> Callable[..., None]:
    """Replaces a photo's bytes."""

    def change(root: Path) -> None:
        (root / name).write_bytes(content((root / name).read_bytes()))

    return change


def without(*names: str) -> Callable[[Path], None]:
    """Removes photos."""

    def change(root: Path) -> None:
        for name in names:
            (root / name).unlink()

    return change


def remove_class(root: Path) -> None:
    (root / "val/dog/0.png").unlink()
    (root / "val/dog").rmdir()


def add_notes(root: Path) -> None:
    (root / "train/dog/notes.txt").write_text("woof")


BAD_PHOTOS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "grayscale": (saved("L"), ("dog/0.png", "grayscale image (mode L)", "--convert")),
    "palette": (saved("P"), ("dog/0.png", "palette image (mode P)", "--convert")),
    "alpha": (saved("RGBA"), ("dog/0.png", "alpha channel", "--convert")),
    "cmyk": (saved("CMYK", ".jpg"), ("dog/0.jpg", "CMYK image", "--convert")),
    "16 bits": (saved("I;16"), ("dog/0.png", "16 or more bits", "--convert")),
    "corrupt": (written(lambda _: b"no photo"), ("dog/0.png", "something else", "save the file")),
    "empty": (written(lambda _: b""), ("dog/0.png", "something else", "save the file")),
    "truncated": (written(lambda old: old[:-40]), ("dog/0.png", "truncated", "save the file")),
    "held out": (
        written(lambda _: b"no photo", "train/dog/2.png"),
        ("dog/2.png", "something else", "save the file"),
    ),
    "no val": (remove_class, ("dog only in train", "add or remove")),
    "empty class": (
        without(*(f"train/dog/{number}.png" for number in range(3))),
        ("train/dog", "got none", "add some"),
    ),
    "one image": (
        without("train/dog/0.png", "train/dog/1.png"),
        ("train/dog", "2 or more images", "add images"),
    ),
    "other file": (
        add_notes,
        ("notes.txt", "another file", "move it away"),
    ),
}


@pytest.mark.parametrize("name", BAD_PHOTOS)
def test_photos_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    change, parts = BAD_PHOTOS[name]
    change(root)
    line = PHOTOS.format(root=root, out=tmp_path / "deep" / "out")
    assert_refused(line, *parts, watched=(tmp_path,))


def test_converting_is_asked_for_and_then_done(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    saved("L")(root)
    line = PHOTOS.format(root=root, out=tmp_path / "out")
    assert_refused(line, "--convert", watched=(tmp_path,))
    assert "trained digits-mlp" in succeed(f"{line} --convert")


def test_a_root_without_train_and_val(tmp_path: Path) -> None:
    line = PHOTOS.format(root=tmp_path, out=tmp_path / "out")
    assert_refused(line, f"{tmp_path}/train", "nothing there", "lay it out", watched=(tmp_path,))


def test_an_architecture_for_other_images(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    line = PHOTOS.format(root=root, out=tmp_path / "out").replace("size 8", "size 32")
    assert_refused(line, "(N, 3, 32, 32)", "made for these images", watched=(tmp_path,))


def test_a_truncated_batch_of_cifar10(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("batches.meta", "data_batch_1"):
        (folder / name).write_bytes(b"\x80\x02")
    line = CIFAR.format(root=tmp_path, out=tmp_path / "out")
    assert_refused(line, "batches.meta", "truncated or altered", "again", watched=(tmp_path,))


def test_a_truncated_archive_of_cifar10(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b\x08\x00")
    line = CIFAR.format(root=tmp_path, out=tmp_path / "out")
    assert_refused(line, "cifar-10-python.tar.gz", "truncated", "again", watched=(tmp_path,))


FACTORIES = """
import torch
from torch import nn

number = 7

def no_module():
    return "a network"

def three_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def other_images(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))

def not_finite(num_classes):
    net = nn.Linear(64, num_classes)
    nn.init.constant_(net.weight, float("nan"))
    return nn.Sequential(nn.Flatten(), net)

def fine(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""

BAD_FACTORIES = {
    "my_factories:no_module": ("torch.nn.Module, got str", "return the network"),
    "my_factories:three_classes": ("(2, 10)", "got (2, 3)", "number of classes"),
    "my_factories:other_images": ("(N, 1, 8, 8)", "made for these images"),
    "my_factories:not_finite": ("finite logits", "check its weights"),
    "my_factories:number": ("can be called, got int", "name a function"),
    "my_factories:missing": ("missing", "check both names"),
    "no_such_module:make": ("no_such_module", "PYTHONPATH"),
}


@pytest.fixture
def my_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's module on the path."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/my_factories.py").write_text(FACTORIES)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.delitem(sys.modules, "my_factories", raising=False)


@pytest.mark.usefixtures("my_factories")
@pytest.mark.parametrize("arch", BAD_FACTORIES)
def test_factories_that_cannot_be_used(arch: str, tmp_path: Path) -> None:
    line = DIGITS.format(arch=arch, out=tmp_path / "out")
    assert_refused(line, *BAD_FACTORIES[arch], watched=(tmp_path,))


@pytest.mark.usefixtures("my_factories")
def test_a_factory_of_ones_own_trains(tmp_path: Path) -> None:
    line = DIGITS.format(arch="my_factories:fine", out=tmp_path / "out")
    assert "trained my_factories:fine" in succeed(line)
