"""Training on images that are not held in memory: the same weights, killed or not."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data import Dataset, load_dataset
from sween.data.image_folder import FilePixels
from sween.errors import UnknownName
from sween.run_folder import read_config
from sween.training import TrainConfig, train
from sween.training import trainer as trainer_module
from sween.training.augment import RATIO, SCALE, ResizedCropFlip
from sween.training.step import StepInputs, StreamedInputs
from sween.training.trainer import Trainer

from .datasets import few_digits, interrupted, measured, same, weights

ARCH = "tests.models.factories:of_small_photos"
CROPS = "resized-crop-flip"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of photos of many sizes."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for part, count in (("train", 14), ("val", 2)):
        for name in ("cat", "dog"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                size = (*random.integers(8, 40, 2), 3)
                photo = Image.fromarray(random.integers(0, 256, size, dtype=np.uint8))
                photo.save(folder / part / name / f"{number}.png")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_STATES", -1.0)


def folder(root: Path) -> Dataset:
    return load_dataset("image_folder", root, image_size=8)


def config(**fields: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"dataset": "image_folder", "arch": ARCH}
    return TrainConfig(**defaults | {"sigma": 0.25, "epochs": 3, "batch_size": 6} | fields)


def inputs_of(wanted: TrainConfig, dataset: Dataset, out: Path) -> StepInputs:
    return Trainer(wanted, dataset, out, device=torch.device("cpu")).step.inputs


@pytest.mark.parametrize("method", ["acr", "catrs"])
def test_what_is_known_of_each_image_is_found_when_it_is_streamed(
    method: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"method": method, "votes": 10, "attack_from": 1, "attack_steps": 1}
    if method == "acr":
        fields |= {"reweigh_from": 1, "reweigh_every": 1, "drop_below": 0.1}
    else:
        train(config(epochs=1), folder(root), tmp_path / "teacher", quiet=True)
        fields["teacher"] = str(tmp_path / "teacher")
    train(config(**fields), folder(root), tmp_path / "held", quiet=True)
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1000")
    train(config(**fields), folder(root), tmp_path / "read", quiet=True)
    assert same(weights(tmp_path / "held"), weights(tmp_path / "read"))


@pytest.mark.parametrize("augmentation", [None, "none", CROPS])
def test_streamed_or_not_the_weights_are_the_same(
    augmentation: str | None, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = config(augmentation=augmentation)
    train(wanted, folder(root), tmp_path / "held", quiet=True)
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1000")
    assert type(inputs_of(wanted, folder(root), tmp_path / "new")) is StreamedInputs
    train(wanted, folder(root), tmp_path / "read", quiet=True)
    assert same(weights(tmp_path / "held"), weights(tmp_path / "read"))
    assert measured(tmp_path / "held") == measured(tmp_path / "read")
    assert read_config(tmp_path / "held") == read_config(tmp_path / "read")
    assert read_config(tmp_path / "held").get("augmentation") == augmentation
    for other in ("none", CROPS):
        if other != augmentation:
            train(config(augmentation=other), folder(root), tmp_path / other, quiet=True)
            assert not same(weights(tmp_path / "held"), weights(tmp_path / other))


def test_only_crops_and_what_does_not_fit_are_streamed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(inputs_of(config(), folder(root), tmp_path / "a")) is StepInputs
    assert type(inputs_of(config(augmentation=CROPS), folder(root), tmp_path / "b")) is (
        StreamedInputs
    )
    monkeypatch.setattr(FilePixels, "load_all", None)  # would hold the whole split
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1000")
    train(config(epochs=1), folder(root), tmp_path / "c", quiet=True)


def test_images_in_memory_can_be_cropped_too(tmp_path: Path) -> None:
    wanted = config(dataset="digits", arch="digits-mlp", augmentation=CROPS)
    train(wanted, few_digits(), tmp_path / "one", quiet=True)
    train(wanted, few_digits(), tmp_path / "again", quiet=True)
    assert same(weights(tmp_path / "one"), weights(tmp_path / "again"))


@pytest.mark.parametrize("stop_after", [2, 7])
def test_a_stopped_run_resumes(
    stop_after: int, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was held in memory before and is streamed now."""
    wanted = config(augmentation=CROPS)
    train(wanted, folder(root), tmp_path / "whole", quiet=True)
    interrupted(wanted, folder(root), tmp_path / "stopped", stop_after)
    train(wanted, folder(root), tmp_path / "stopped", quiet=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    train(config(), folder(root), tmp_path / "held", quiet=True)
    interrupted(config(), folder(root), tmp_path / "moved", stop_after)
    monkeypatch.setenv("SWEEN_STREAM_ABOVE", "1000")
    train(config(), folder(root), tmp_path / "moved", quiet=True)
    assert same(weights(tmp_path / "held"), weights(tmp_path / "moved"))


_SCRIPT = """
import sys, time
import torch
from sween.data import load_dataset
from sween.training import TrainConfig, trainer
trainer.SECONDS_BETWEEN_STATES = 0.0
config = TrainConfig(dataset="image_folder", arch=sys.argv[2], sigma=0.25,
                     epochs=40, batch_size=6, augmentation="resized-crop-flip")
dataset = load_dataset("image_folder", sys.argv[1], image_size=8)
for _ in trainer.Trainer(config, dataset, sys.argv[3], device=torch.device("cpu")).run():
    time.sleep(0.05)  # so that it does not end before it is killed
"""


@pytest.mark.slow
def test_a_killed_run_resumes(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(root), ARCH]
    process = subprocess.Popen([*command, str(tmp_path / "killed")])
    path = tmp_path / "killed" / "metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wanted = config(epochs=40, augmentation=CROPS)
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    for name in ("whole", "killed"):
        train(wanted, folder(root), tmp_path / name, quiet=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert measured(tmp_path / "whole") == measured(tmp_path / "killed")


@pytest.mark.parametrize(("height", "width"), [(30, 40), (1, 1), (3, 500), (400, 2), (2, 2)])
def test_crops_are_inside_the_photo_and_as_wanted(height: int, width: int) -> None:
    crop = ResizedCropFlip(8, 8, seed=5)
    drawn = [crop.draw(position, height, width) for position in range(400)]
    assert drawn == [crop.draw(position, height, width) for position in range(400)]
    for top, left, tall, wide, _ in drawn:
        assert 0 <= top <= top + tall <= height
        assert 0 <= left <= left + wide <= width
        assert min(tall, wide) >= 1
    assert 0.4 < np.mean([flip for *_, flip in drawn]) < 0.6
    if min(height, width) >= 30:
        areas = np.array([tall * wide for _, _, tall, wide, _ in drawn]) / (height * width)
        ratios = np.array([wide / tall for _, _, tall, wide, _ in drawn])
        assert SCALE[0] * 0.8 < areas.min() < 0.15
        assert areas.max() > 0.8
        assert np.all((RATIO[0] * 0.9 < ratios) & (ratios < RATIO[1] * 1.1))
        assert len({row[:2] for row in drawn}) > 100
    photo = torch.full((3, height, width), 7, dtype=torch.uint8)
    assert torch.equal(crop(0, photo), torch.full((3, 8, 8), 7, dtype=torch.uint8))


def test_a_crop_is_the_part_scaled_and_flipped() -> None:
    photo = torch.randint(0, 256, (3, 32, 48), generator=torch.Generator().manual_seed(0)).byte()
    crop = ResizedCropFlip(8, 8, seed=1)
    flips = set()
    for position in range(8):
        top, left, tall, wide, flip = crop.draw(position, 32, 48)
        part = photo[:, top : top + tall, left : left + wide].permute(1, 2, 0).numpy()
        scaled = np.asarray(Image.fromarray(part).resize((8, 8), Image.Resampling.BILINEAR))
        scaled = scaled[:, ::-1] if flip else scaled
        found = crop(position, photo).permute(1, 2, 0).numpy()
        assert np.abs(found.astype(int) - scaled.astype(int)).max() <= 1
        flips.add(flip)
    assert flips == {True, False}
    assert not torch.equal(crop(0, photo), dataclasses.replace(crop, seed=2)(0, photo))


def test_an_unknown_augmentation() -> None:
    with pytest.raises(UnknownName, match="did you mean 'resized-crop-flip'"):
        config(augmentation="resized-crop")
