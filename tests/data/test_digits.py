"""The digits: three disjoint splits, the same for ever."""

import hashlib
import sys

import pytest
import torch

from sween.data.dataset import Dataset, Split
from sween.data.digits import MEAN, STD, _split_order, load_digits
from sween.errors import MissingExtra


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def test_shape_and_names(digits: Dataset) -> None:
    assert digits.name == "digits"
    assert digits.image_shape == (1, 8, 8)
    assert digits.class_names == tuple("0123456789")
    assert digits.num_classes == 10
    assert digits.augmentation == "none"
    assert digits.root is None


def test_sizes(digits: Dataset) -> None:
    splits = (digits.train, digits.weights, digits.test)
    assert [len(split) for split in splits] == [1197, 240, 360]
    assert [len(split.pixels) for split in splits] == [1197, 240, 360]
    assert [split.name for split in splits] == ["train", "weights", "test"]


def test_pixels_and_units(digits: Dataset) -> None:
    stored = digits.test.pixels.load([0, 1])
    assert stored.dtype == torch.uint8
    assert stored.shape == (2, 1, 8, 8)
    images = digits.test.all_images()
    assert images.dtype == torch.float32
    assert images.min() == 0
    assert images.max() == 1
    assert torch.equal(images[:2], stored.float() / 16)


def test_mean_and_std_are_those_of_the_training_split(digits: Dataset) -> None:
    images = digits.train.all_images().double()
    assert round(images.mean().item(), 4) == MEAN
    assert round(images.std(correction=0).item(), 4) == STD
    assert (digits.mean, digits.std) == ((MEAN,), (STD,))


def test_each_image_is_in_exactly_one_split() -> None:
    order = _split_order(1797).tolist()
    assert sorted(order) == list(range(1797))


def content(split: Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.pixels.load(range(len(split)))}


def test_the_splits_share_no_image(digits: Dataset) -> None:
    train, weights, test = content(digits.train), content(digits.weights), content(digits.test)
    assert not train & weights
    assert not train & test
    assert not weights & test


def test_labels_match_their_images(digits: Dataset) -> None:
    from sklearn.datasets import load_digits as load_embedded

    embedded = load_embedded()
    label_of = {
        image.astype("uint8").tobytes(): label
        for image, label in zip(embedded.images, embedded.target, strict=True)
    }
    for split in (digits.train, digits.weights, digits.test):
        for image, label in zip(split.pixels.load(range(len(split))), split.labels, strict=True):
            assert label_of[image.numpy().tobytes()] == label.item()


def test_the_test_split_never_changes(digits: Dataset) -> None:
    pixels = digits.test.pixels.load(range(len(digits.test)))
    assert hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16] == "20805358efc5593a"


def test_without_scikit_learn_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra) as caught:
        load_digits()
    assert str(caught.value) == (
        "the digits need scikit-learn, which is not installed; pip install scikit-learn"
    )
