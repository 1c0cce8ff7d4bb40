"""`sween import`: a checkpoint of others, or one's own, becomes a member that certifies."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import sween
from sween.models import create_model, load_checkpoint
from sween.records import read_certificates
from sween.run_folder import read_config
from tests.cli.command import assert_refused, run_line, succeed
from tests.cli.photos import CLASSES, write_photos
from tests.models.factories import with_classes

NORMALIZE = "--normalize 0.5,0.5,0.5/0.25,0.25,0.25"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "root")


@pytest.fixture
def published(tmp_path: Path) -> tuple[nn.Module, Path]:
    """A network, and its file as others save it."""
    model = create_model(
        "resnet20",
        num_classes=len(CLASSES),
        image_shape=(3, 32, 32),
        mean=[0.5] * 3,
        std=[0.25] * 3,
    )
    assert isinstance(model, nn.Sequential)
    state = {
        f"1.module.{name}".replace("stage", "layer").replace("shortcut", "downsample"): tensor
        for name, tensor in model[1].state_dict().items()
    }
    torch.save({"epoch": 90, "state_dict": state}, tmp_path / "checkpoint.pth.tar")
    return model.eval(), tmp_path / "checkpoint.pth.tar"


def _line(file: Path, root: Path, out: Path, *options: str) -> str:
    return (
        f"import {file} --arch resnet20 --sigma 0.25 --dataset image_folder --image-size 32 "
        f"--data-root {root} --out {out} {' '.join(options)}"
    )


@pytest.mark.filterwarnings("ignore:only")  # an untrained network may be right on few images
def test_an_imported_network_is_the_published_one_and_certifies(
    published: tuple[nn.Module, Path], root: Path, tmp_path: Path
) -> None:
    model, file = published
    line = _line(file, root, tmp_path / "run", NORMALIZE)
    assert "% of " in succeed(line)
    loaded, manifest = load_checkpoint(tmp_path / "run")
    images = torch.rand(3, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))
    assert (manifest.sigma, manifest.class_names) == (0.25, tuple(sorted(CLASSES)))
    assert manifest.training["origin"]["file"] == file.name
    succeed(line)  # again into the same folder
    certify = f"certify {tmp_path / 'run'} --data-root {root} --every 2 --n 200 --quiet"
    succeed(f"{certify} --out {tmp_path / 'rows'}")
    assert {row.model for row in read_certificates(tmp_path / "rows")} == {"resnet20"}


def test_a_network_that_is_hardly_ever_right_is_warned_about(
    published: tuple[nn.Module, Path], root: Path, tmp_path: Path
) -> None:
    content = torch.load(published[1], weights_only=True)
    content["state_dict"]["1.module.fc.bias"][0] = 1e6  # always the same class
    torch.save(content, published[1])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = run_line(_line(published[1], root, tmp_path / "run", NORMALIZE))
    assert outcome.code == 0
    assert "check architecture, noise level and normalisation" in outcome.stderr


def test_a_cifar_network_is_imported_without_its_data_where_no_check_is_wanted(
    tmp_path: Path,
) -> None:
    model = create_model(
        "resnet20", num_classes=10, image_shape=(3, 32, 32), mean=[0.5] * 3, std=[0.25] * 3
    )
    assert isinstance(model, nn.Sequential)
    torch.save(model[1].state_dict(), tmp_path / "weights.pth")
    run = tmp_path / "run"
    line = f"import {tmp_path / 'weights.pth'} --arch resnet20 --sigma 0.25 {NORMALIZE} --out {run}"
    assert_refused(line, "root of cifar10", watched=(tmp_path,))
    assert "its accuracy was not checked" in succeed(f"{line} --no-check")
    _, manifest = load_checkpoint(run)
    assert manifest.dataset == "cifar10"
    assert manifest.class_names == sween.load("cifar10-sween3-gaussian-sigma0.50").class_names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"{NORMALIZE} --arch resnet110", "do not fit"),
        (f"{NORMALIZE} --arch resnet18", "did you mean 'imagenet-resnet18'?"),
        (f"{NORMALIZE} --sigma 0", "sigma"),
        (f"{NORMALIZE} --images 0", "images"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    options: str, said: str, published: tuple[nn.Module, Path], root: Path, tmp_path: Path
) -> None:
    line = _line(published[1], root, tmp_path / "run", options)
    assert_refused(line, said, watched=(tmp_path,))


def test_another_normalisation_is_another_run(
    published: tuple[nn.Module, Path], root: Path, tmp_path: Path
) -> None:
    line = _line(published[1], root, tmp_path / "run", NORMALIZE, "--no-check")
    succeed(line)
    succeed(line)  # the same again
    other = _line(published[1], root, tmp_path / "run", "--normalize imagenet", "--no-check")
    assert_refused(other, "mean", watched=(tmp_path,))
    assert read_config(tmp_path / "run")["std"] == [0.25] * 3


def test_own_weights_of_an_own_network_certify(tmp_path: Path) -> None:
    own = "tests.models.factories:with_classes"
    torch.save(with_classes(10).state_dict(), tmp_path / "weights.pth")
    run, line = tmp_path / "run", f"import {tmp_path / 'weights.pth'} --sigma 0.5 --dataset digits"
    refused = f"{line} --arch {own} --normalize none --out {run}"
    assert_refused(refused, "--normalize", "factory", watched=(tmp_path,))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only")
        succeed(f"{line} --arch {own} --out {run}")
    certify = f"certify {run} --every 90 --n 200 --quiet --out {tmp_path / 'rows'}"
    assert_refused(certify, f"--arch {own}", watched=(tmp_path,))
    succeed(f"{certify} --arch {own}")
    assert len(read_certificates(tmp_path / "rows")) == 4


def test_what_is_assumed_of_shortcuts_is_said(
    published: tuple[nn.Module, Path], root: Path, tmp_path: Path
) -> None:
    content = torch.load(published[1], weights_only=True)
    state = content["state_dict"]
    content["state_dict"] = {name: state[name] for name in state if "downsample" not in name}
    torch.save(content, published[1])
    said = succeed(_line(published[1], root, tmp_path / "run", NORMALIZE, "--no-check"))
    (line,) = (line for line in said.splitlines() if "option A" in line)
    assert line.startswith("checkpoint.pth.tar: no weights of shortcuts in the file")


def test_weights_that_are_not_finite_are_refused_without_the_check_too(
    published: tuple[nn.Module, Path], root: Path, tmp_path: Path
) -> None:
    content = torch.load(published[1], weights_only=True)
    content["state_dict"]["1.module.fc.bias"][0] = float("nan")
    torch.save(content, published[1])
    line = _line(published[1], root, tmp_path / "run", NORMALIZE, "--no-check")
    assert_refused(line, "fc.bias: expected finite weights", watched=(tmp_path,))
