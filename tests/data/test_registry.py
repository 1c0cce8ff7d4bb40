"""load_dataset finds each data set by name and says what is missing."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sween.data import DATASETS, load_dataset
from sween.errors import BadInput, DataError, UnknownName

from .conftest import Refuses

NEED_ROOT = ["cifar10", "image_folder"]


def test_every_data_set_loads_by_its_name(cifar_folder: Path) -> None:
    assert list(DATASETS) == ["digits", *NEED_ROOT]
    assert [name for name, entry in DATASETS.items() if entry.needs_root] == NEED_ROOT
    assert all(entry.summary for entry in DATASETS.values())
    assert load_dataset("digits").name == "digits"
    assert load_dataset("cifar10", cifar_folder.parent).name == "cifar10"


@pytest.mark.parametrize(("asked", "size"), [(None, 224), (16, 16)])
def test_image_folder(asked: int | None, size: int, tmp_path: Path) -> None:
    for part, name in (("train", "0"), ("train", "1"), ("val", "0")):
        path = tmp_path / part / "cat" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    read = load_dataset("image_folder", tmp_path, image_size=asked, convert=True)
    assert read.test.images([0]).shape == (1, 3, size, size)


def test_an_unknown_name(refuses: Refuses) -> None:
    with refuses(UnknownName, "'cifar'", "did you mean 'cifar10'", "digits"):
        load_dataset("cifar")


@pytest.mark.parametrize("name", NEED_ROOT)
def test_a_missing_root(name: str, tmp_path: Path, refuses: Refuses) -> None:
    with refuses(BadInput, name, "as `root`"):
        load_dataset(name)
    with refuses(DataError, str(tmp_path / "absent"), "nothing there", "as `root`"):
        load_dataset(name, tmp_path / "absent")


def test_options_that_do_not_apply(refuses: Refuses) -> None:
    with refuses(BadInput, "image_size", "digits", "got 64", "leave `image_size` out"):
        load_dataset("digits", image_size=64)
    with refuses(BadInput, "convert", "digits", "leave `convert` out"):
        load_dataset("digits", convert=True)
