"""A run records its training images and does not resume on others."""

import dataclasses
from pathlib import Path

import pytest

from sween.data import Dataset, Split
from sween.data.dataset import StoredPixels
from sween.errors import CheckpointError
from sween.models import load_checkpoint, read_manifest, save_checkpoint
from sween.run_folder import to_toml
from sween.runs.training import DATA_KEYS
from sween.training import train, train_many
from sween.training.config import TrainConfig
from sween.training.training_images import describe_images

from .datasets import config, few_digits, files, interrupted, same, weights


def with_pixel(split: Split) -> Split:
    pixels = split.pixels.load_all().clone()
    pixels[3, 0, 4, 4] ^= 1
    return dataclasses.replace(split, pixels=StoredPixels(pixels))


def with_label(split: Split) -> Split:
    labels = split.labels.clone()
    labels[3] = (labels[3] + 1) % 10
    return dataclasses.replace(split, labels=labels)


def larger(dataset: Dataset) -> Dataset:
    """The same digits at twice the size."""

    def scaled(split: Split) -> Split:
        pixels = split.pixels.load_all().repeat_interleave(2, 2).repeat_interleave(2, 3)
        return dataclasses.replace(split, pixels=StoredPixels(pixels))

    train, weights = scaled(dataset.train), scaled(dataset.weights)
    return dataclasses.replace(dataset, image_shape=(1, 16, 16), train=train, weights=weights)


DIGITS = few_digits()
OTHERS: dict[str, tuple[Dataset, set[str]]] = {
    "size": (larger(DIGITS), set(DATA_KEYS)),
    "pixel": (dataclasses.replace(DIGITS, train=with_pixel(DIGITS.train)), {"train_data"}),
    "label": (dataclasses.replace(DIGITS, train=with_label(DIGITS.train)), {"train_data"}),
    "weights": (
        dataclasses.replace(DIGITS, weights=with_pixel(DIGITS.weights)),
        {"weights_data"},
    ),
    "one less": (dataclasses.replace(DIGITS, train=few_digits(59).train), {"train_data"}),
    "class names": (
        dataclasses.replace(DIGITS, class_names=tuple("abcdefghij")),
        {"train_data", "weights_data"},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_change_of_the_images_is_seen(name: str) -> None:
    changed, keys = OTHERS[name]
    one, other = describe_images(few_digits()), describe_images(changed)
    assert {key for key in DATA_KEYS if one[key] != other[key]} == keys
    assert describe_images(few_digits()) == one


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", ["size", "weights"])
def test_other_images_are_refused_with_what_differs(
    name: str, finished: bool, tmp_path: Path
) -> None:
    wanted = config(arch="resnet20", epochs=2)  # takes images of any size
    if finished:
        train(wanted, few_digits(), tmp_path, quiet=True)
    else:
        interrupted(wanted, few_digits(), tmp_path, 5)
    before = files(tmp_path)
    changed, keys = OTHERS[name]
    with pytest.raises(CheckpointError, match="another config") as caught:
        train(wanted, changed, tmp_path, quiet=True)
    assert all((key in str(caught.value)) == (key in keys) for key in DATA_KEYS)
    assert files(tmp_path) == before


def test_what_differs_is_said_before_any_of_several_trains(tmp_path: Path) -> None:
    outs = [tmp_path / "a", tmp_path / "b"]
    train(config(epochs=1, seed=1), few_digits(59), outs[1], quiet=True)
    configs = [config(epochs=1), config(epochs=1, seed=1)]
    with pytest.raises(CheckpointError, match=r"b holds a run with another config \(train_data"):
        train_many(configs, few_digits(), outs, quiet=True)
    assert not outs[0].exists()


def test_what_was_done_and_what_was_there_already(tmp_path: Path) -> None:
    outs = [tmp_path / "a", tmp_path / "b"]
    configs = [config(epochs=1), config(epochs=1, seed=1)]
    assert train_many(configs[:1], few_digits(), outs[:1], quiet=True) == [True]
    assert train_many(configs, few_digits(), outs, quiet=True) == [False, True]
    assert train_many(configs, few_digits(), outs, quiet=True) == [False, False]
    assert train_many(configs[:1], few_digits(), outs[:1], quiet=True) == [False]


def as_older(folder: Path, wanted: TrainConfig) -> None:
    """What a version wrote that did not record its images."""
    (folder / "config.toml").write_text(to_toml(wanted.as_dict()))
    if (folder / "model.safetensors").exists():
        model, manifest = load_checkpoint(folder)
        manifest = dataclasses.replace(manifest, training=wanted.as_dict())
        save_checkpoint(model, folder / "model.safetensors", manifest)


def test_a_finished_run_of_an_older_version_stays_as_it_is(tmp_path: Path) -> None:
    wanted = config(arch="resnet20", epochs=1)
    train(wanted, few_digits(), tmp_path, quiet=True)
    as_older(tmp_path, wanted)
    before = files(tmp_path)
    assert train_many([wanted], few_digits(), [tmp_path], quiet=True) == [False]
    assert same(train(wanted, few_digits(), tmp_path, quiet=True).state_dict(), weights(tmp_path))
    with pytest.raises(CheckpointError, match=r"different images .*\(1, 8, 8\) -> \(1, 16, 16\)"):
        train(wanted, larger(few_digits()), tmp_path, quiet=True)
    assert files(tmp_path) == before
    assert read_manifest(tmp_path).training == wanted.as_dict()


def test_an_unfinished_run_of_an_older_version_is_refused(tmp_path: Path) -> None:
    interrupted(config(), few_digits(), tmp_path)
    as_older(tmp_path, config())
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=r"unfinished run of an older version.*delete"):
        train(config(), few_digits(), tmp_path, quiet=True)
    assert files(tmp_path) == before
