"""The digits: three disjoint splits, the same for ever."""

import hashlib
import sys

import pytest
import torch

from sween.data.dataset import Dataset
from sween.data.digits import MEAN, STD, load_digits
from sween.errors import BadInput


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def test_splits_and_units(digits: Dataset) -> None:
    assert (digits.name, digits.image_shape, digits.root) == ("digits", (1, 8, 8), None)
    assert (digits.class_names, digits.augmentation) == (tuple("0123456789"), "none")
    splits = (digits.train, digits.weights, digits.test)
    assert [len(split) for split in splits] == [1197, 240, 360]
    assert [split.name for split in splits] == ["train", "weights", "test"]
    stored = digits.test.pixels.load([0, 1])
    assert (stored.dtype, stored.shape) == (torch.uint8, (2, 1, 8, 8))
    images = digits.test.all_images()
    assert images.dtype == torch.float32
    assert (images.min().item(), images.max().item()) == (0, 1)
    assert torch.equal(images[:2], stored.float() / 16)


def test_mean_and_std_are_those_of_the_training_split(digits: Dataset) -> None:
    images = digits.train.all_images().double()
    assert round(images.mean().item(), 4) == MEAN
    assert round(images.std(correction=0).item(), 4) == STD
    assert (digits.mean, digits.std) == ((MEAN,), (STD,))


def test_each_image_is_in_exactly_one_split_with_its_label(digits: Dataset) -> None:
    from sklearn.datasets import load_digits as load_embedded

    embedded = load_embedded()
    label_of = {
        image.astype("uint8").tobytes(): label
        for image, label in zip(embedded.images, embedded.target, strict=True)
    }
    found = [
        (image.numpy().tobytes(), int(label))
        for split in (digits.train, digits.weights, digits.test)
        for image, label in zip(split.pixels.load_all(), split.labels, strict=True)
    ]
    assert len(found) == len(set(found)) == len(label_of)
    assert dict(found) == label_of


def test_the_test_split_never_changes(digits: Dataset) -> None:
    pixels = digits.test.pixels.load(range(len(digits.test)))
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == "20805358efc5593a"


def test_without_scikit_learn_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(BadInput, match="pip install scikit-learn"):
        load_digits()
