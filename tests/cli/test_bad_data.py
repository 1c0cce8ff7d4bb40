"""Training on data and factories that cannot be used: refused, and no run folder left behind."""

import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.command import assert_refused, succeed
from tests.cli.photos import write_photos

PHOTOS = (
    "train --dataset image_folder --data-root {root} --image-size 8 --arch digits-mlp "
    "--sigma 0.5 --epochs 1 --quiet --out {out}"
)
DIGITS = "train --dataset digits --arch {arch} --sigma 0.5 --epochs 1 --out {out}"


def test_a_photo_that_cannot_be_used(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    (root / "train/dog/0.png").write_bytes(b"no photo")
    line = PHOTOS.format(root=root, out=tmp_path / "deep" / "out")
    assert_refused(line, "dog/0.png", "something else", "save the file", watched=(tmp_path,))


def test_converting_is_asked_for_and_then_done(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    Image.new("L", (8, 8)).save(root / "train/dog/0.png")
    line = PHOTOS.format(root=root, out=tmp_path / "out")
    assert_refused(line, "dog/0.png", "mode L", "--convert", watched=(tmp_path,))
    assert "trained digits-mlp" in succeed(f"{line} --convert")


def test_an_architecture_for_other_images(tmp_path: Path) -> None:
    root = write_photos(tmp_path / "photos")
    line = PHOTOS.format(root=root, out=tmp_path / "out").replace("size 8", "size 32")
    assert_refused(line, "(N, 3, 32, 32)", "made for these images", watched=(tmp_path,))


def test_a_truncated_archive_of_cifar10(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b\x08\x00")
    line = f"train --dataset cifar10 --data-root {tmp_path} --arch resnet20 --sigma 0.5 --out "
    assert_refused(f"{line}{tmp_path}/out", "python.tar.gz", "truncated", watched=(tmp_path,))


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
    "my_factories:no_module": ("torch.nn.Module, got a str", "return the network"),
    "my_factories:three_classes": ("(2, 10)", "got (2, 3)", "number of classes"),
    "my_factories:other_images": ("(N, 1, 8, 8)", "made for these images"),
    "my_factories:not_finite": ("finite logits", "check its weights"),
    "my_factories:number": ("can be called, got an int", "name a function"),
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
