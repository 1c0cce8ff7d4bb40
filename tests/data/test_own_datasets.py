"""Data sets that do not come with sween: from train and test images, registered, or by factory."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from sween.data import DATASETS, Dataset, as_dataset, load_dataset, register_dataset
from sween.data.image_set import DatasetPixels
from sween.errors import BadInput, DataError, UnknownName

from .conftest import Refuses

TRAIN = torch.randint(0, 256, (90, 3, 6, 5), generator=torch.Generator().manual_seed(1)).byte()
TEST = TRAIN[:12].flip(0).clone()
TRAIN_LABELS, TEST_LABELS = torch.arange(90) % 3, torch.arange(12) % 3
PAIR = ((TRAIN, TRAIN_LABELS), (TEST, TEST_LABELS))


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(DATASETS)
    yield
    DATASETS.clear()
    DATASETS.update(before)


def test_train_and_test_images_become_three_disjoint_splits() -> None:
    dataset = as_dataset(*PAIR)
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.image_shape == (3, 6, 5)
    # 4% of 30 images per class is 1: the last of each class, in the order of the data.
    assert torch.equal(dataset.weights.pixels.load_all(), TRAIN[-3:])
    assert torch.equal(dataset.train.pixels.load_all(), TRAIN[:-3])
    assert torch.equal(dataset.train.labels, TRAIN_LABELS[:-3])
    assert dataset.weights.labels.tolist() == [0, 1, 2]
    assert torch.equal(dataset.test.images(range(12)), TEST.float() / 255)
    dataset.check_trainable()
    items: Any = [(image, int(label)) for image, label in zip(TRAIN, TRAIN_LABELS, strict=True)]
    lazy = as_dataset(items, DataLoader(Subset(items, range(9))), augmentation="crop-flip")
    assert isinstance(lazy.test.pixels, DatasetPixels)
    assert lazy.train.pixels.fingerprint() == dataset.train.pixels.fingerprint(), "in memory"
    assert lazy.augmentation == "crop-flip"


class Named(TensorDataset):
    classes = ("cat", "dog", "owl", "emu")


def test_class_names() -> None:
    cats, tests = Named(TRAIN, TRAIN_LABELS % 2), Named(TEST, TEST_LABELS % 2)
    with pytest.raises(BadInput, match=r"class owl: expected 2 or more.*got 0"):
        as_dataset(cats, tests)
    assert as_dataset(cats, tests, class_names=["a", "b"]).class_names == ("a", "b")
    assert as_dataset(*PAIR, class_names="abc").num_classes == 3
    listed = as_dataset(cats, Subset(tests, range(4)), test_only=True)
    assert listed.class_names == Named.classes


def test_test_images_alone() -> None:
    class Unread:
        classes = ("a", "b", "c")

        def __len__(self) -> int:
            raise AssertionError("the training images were asked for")

    dataset = as_dataset(Unread(), PAIR[1], test_only=True)
    assert (len(dataset.train), len(dataset.weights), len(dataset.test)) == (0, 0, 12)
    with pytest.raises(BadInput, match="training images"):
        dataset.check_trainable()
    # Without class names the training labels say how many classes there are.
    assert as_dataset(PAIR[0], (TEST, TEST_LABELS * 0), test_only=True).num_classes == 3


@pytest.mark.parametrize(
    ("train", "test", "options", "words"),
    [
        (TRAIN, PAIR[1], {}, "dataset train: expected a label for each image"),
        (PAIR[0], TEST, {}, "dataset test: expected a label"),
        (PAIR[0], (TEST[:, :, 1:], TEST_LABELS), {}, r"\(3, 6, 5\) in test, as in train"),
        (*PAIR, {"class_names": "ab"}, r"dataset train\[2\]: label: expected 0 to 1.*got 2"),
        (*PAIR, {"augmentation": "flips"}, "unknown augmentation 'flips'"),
        (PAIR[0], ([TEST[0], TEST[1, :, 1:]], [0, 1]), {}, "of one shape"),
    ],
)
def test_what_does_not_fit(train: Any, test: Any, options: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        as_dataset(train, test, **options)


def test_a_registered_data_set_loads_by_its_name(tmp_path: Path) -> None:
    asked = list[dict[str, Any]]()

    @register_dataset("flowers", summary="two pages of them")
    def flowers(root: Path | None = None, image_size: int = 6) -> Any:
        asked.append({"root": root, "image_size": image_size})
        return (*PAIR, ["rose", "lily", "aster"])

    assert DATASETS["flowers"].summary == "two pages of them"
    dataset = load_dataset("flowers")
    assert (dataset.name, dataset.class_names) == ("flowers", ("rose", "lily", "aster"))
    assert dataset.options == {}
    assert load_dataset("flowers", tmp_path, image_size=9).options == {"image_size": 9}
    assert asked == [{"root": None, "image_size": 6}, {"root": tmp_path, "image_size": 9}]
    with pytest.raises(BadInput, match="leave `convert` out"):
        load_dataset("flowers", convert=True)
    with pytest.raises(DataError, match="absent"):
        load_dataset("flowers", tmp_path / "absent")
    with pytest.raises(UnknownName, match="did you mean 'flowers'"):
        load_dataset("flower")


def test_a_whole_data_set_keeps_what_it_says() -> None:
    whole = as_dataset(*PAIR, augmentation="crop-flip", crop_padding=1, white=128)
    register_dataset("whole", lambda: whole, white=128)
    assert load_dataset("whole") == dataclasses.replace(whole, name="whole")
    for name in ("digits", "a:b", "../x"):
        with pytest.raises(BadInput, match="data set name"):
            register_dataset(name, lambda: PAIR)
    register_dataset("whole", lambda: whole)
    with pytest.raises(BadInput, match=r"white: expected 255.*got 128"):
        load_dataset("whole")


OWN = """
import torch
images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
def make():
    return (images, labels), (images[:6], labels[:6])
def alone(test_only=False):
    return ((None, (images, labels), ["a", "b"])) if test_only else make()
def nothing():
    return None
def from_files(root):
    return make()
def fails():
    raise KeyError("flowers")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of one's own, in the current folder."""
    (tmp_path / "own_images.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield "own_images"
    sys.modules.pop("own_images", None)


def test_a_data_set_by_its_factory(own: str, tmp_path: Path) -> None:
    dataset = load_dataset(f"{own}:make")
    assert isinstance(dataset, Dataset)
    assert dataset.name == "own_images:make"
    assert dataset.test.images([0]).shape == (1, 1, 4, 4)
    assert len(load_dataset(f"{own}:alone", test_only=True).train) == 0
    assert load_dataset(f"{own}:from_files", tmp_path).num_classes == 2


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("nothing", "expected a factory that returns a sween Dataset or"),
        ("from_files", "as `root`"),
        ("fails", "KeyError: 'flowers'"),
    ],
)
def test_a_factory_that_cannot_be_used(
    factory: str, words: str, own: str, refuses: Refuses
) -> None:
    with refuses(BadInput, f"{own}:{factory}", words):
        load_dataset(f"{own}:{factory}")
