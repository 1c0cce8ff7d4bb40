"""Checkpoints of other projects: their names, their wrappers, and what must not be read."""

import argparse
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sween.errors import BadInput, CheckpointError, UnknownName
from sween.models import create_model
from sween.models.published import parse_normalization, published_network, read_published
from tests.engine.kernels.strangers import ResNet, padded_shortcut

SHAPE, IMAGES = (3, 32, 32), torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _network(arch: str = "resnet20", shape: tuple[int, int, int] = SHAPE) -> nn.Sequential:
    model = create_model(
        arch, num_classes=10, image_shape=shape, mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    for name, buffer in model[1].named_buffers():  # type: ignore[index]
        if buffer.is_floating_point():
            buffer.uniform_(0.5 if "var" in name else -0.2, 1.5, generator=generator)
    assert isinstance(model, nn.Sequential)
    return model.eval()


def _named(model: nn.Sequential, prefix: str = "") -> "OrderedDict[str, torch.Tensor]":
    """The network's weights under the names of Cohen et al.'s code."""
    state: OrderedDict[str, torch.Tensor] = OrderedDict()
    for name, tensor in model[1].state_dict().items():
        own = re.sub(r"^stage", "layer", name).replace("shortcut", "downsample")
        state[f"{prefix}{own}"] = tensor
    return state


FILES: dict[str, Any] = {
    "Cohen et al.": lambda m: {"epoch": 90, "arch": "x", "state_dict": _named(m, "1."),
                               "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
    "parallel": lambda m: {"state_dict": _named(m, "1.module.")},
    "parallel outside": lambda m: {"state_dict": _named(m, "module.1.")},
    "MACER": lambda m: {"net": _named(m, "module."), "epoch": 440},
    "weights alone": lambda m: _named(m),
    "options of a script": lambda m: {"model": _named(m), "args": argparse.Namespace(lr=0.1),
                                      "best": np.float64(0.61)},
    "old torch": lambda m: {k: v for k, v in _named(m).items() if "tracked" not in k},
    "linear": lambda m: {k.replace("fc.", "linear."): v for k, v in _named(m).items()},
    "float64": lambda m: {k: v.double() if v.is_floating_point() else v
                          for k, v in _named(m).items()},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_published_layouts_give_the_same_network(name: str, tmp_path: Path) -> None:
    model = _network()
    torch.save(FILES[name](model), tmp_path / "checkpoint.pth.tar")
    found, published = published_network(
        tmp_path / "checkpoint.pth.tar", "resnet20", num_classes=10, image_shape=SHAPE,
        normalize="cifar10",
    )  # fmt: skip
    assert torch.equal(found(IMAGES), model(IMAGES))
    assert published.constants is None
    if name == "Cohen et al.":
        assert published.about == {"epoch": 90, "arch": "x"}


@torch.no_grad()
def test_constants_in_the_file_are_used_and_must_agree(tmp_path: Path) -> None:
    model, file = _network(), tmp_path / "checkpoint.pth"
    means = {"0.means": model[0].mean.flatten(), "0.sds": model[0].std.flatten()}  # type: ignore[operator]
    torch.save({"state_dict": {**means, **_named(model, "1.")}}, file)
    options: dict[str, Any] = {"num_classes": 10, "image_shape": SHAPE}
    for normalize in (None, "cifar10"):
        found, _ = published_network(file, "resnet20", **options, normalize=normalize)
        assert torch.equal(found(IMAGES), model(IMAGES))
    with pytest.raises(BadInput, match="normalize"):
        published_network(file, "resnet20", **options, normalize="imagenet")


@torch.no_grad()
def test_shortcuts_without_weights_become_convolutions(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = ResNet(counts=(3, 3, 3), shortcut=padded_shortcut).eval()
    state = {}
    for name, tensor in module.state_dict().items():
        own = re.sub("norm", "bn", re.sub(r"^head", "linear", name))
        place = re.match(r"blocks\.(\d+)", own)
        if place:
            stage, block = divmod(int(place[1]), 3)
            own = f"layer{stage + 1}.{block}{own[place.end() :]}"
        state[f"module.{own}"] = tensor
    torch.save({"state_dict": state}, tmp_path / "c.pth")
    found, published = published_network(
        tmp_path / "c.pth", "resnet20", num_classes=10, image_shape=SHAPE, normalize="none"
    )
    assert torch.allclose(found(IMAGES), module(IMAGES), atol=1e-6)
    assert published.assumed is not None
    assert "option A" in published.assumed


def test_nothing_is_assumed_of_shortcuts_with_weights(tmp_path: Path) -> None:
    torch.save(_named(_network()), tmp_path / "c.pth")
    options: dict[str, Any] = {"num_classes": 10, "image_shape": SHAPE, "normalize": "none"}
    assert published_network(tmp_path / "c.pth", "resnet20", **options)[1].assumed is None


def test_networks_for_larger_images_have_no_shortcuts_without_weights(tmp_path: Path) -> None:
    shape = (3, 64, 64)
    state = {
        name: tensor
        for name, tensor in _network("imagenet-resnet18", shape)[1].state_dict().items()
        if "shortcut" not in name
    }
    torch.save(state, tmp_path / "c.pth")
    options: dict[str, Any] = {"num_classes": 10, "image_shape": shape, "normalize": "none"}
    with pytest.raises(CheckpointError, match=r"no \S+shortcut"):
        published_network(tmp_path / "c.pth", "imagenet-resnet18", **options)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("name", ["conv1.weight", "layer2.0.bn1.running_var", "fc.bias"])
def test_weights_that_are_not_finite_are_refused(name: str, value: float, tmp_path: Path) -> None:
    state = {own: tensor.double() for own, tensor in _named(_network()).items()}
    state[name].view(-1)[0] = value
    torch.save(state, tmp_path / "c.pth")
    options: dict[str, Any] = {"num_classes": 10, "image_shape": SHAPE, "normalize": "none"}
    with pytest.raises(CheckpointError, match=r"expected finite weights, got .* in 1 of"):
        published_network(tmp_path / "c.pth", "resnet20", **options)


@pytest.mark.parametrize(("kind", "value"), [("mean", float("nan")), ("std", 0.0)])
def test_constants_in_the_file_must_be_usable(kind: str, value: float, tmp_path: Path) -> None:
    constants = {"mean": torch.full((3,), 0.5), "std": torch.full((3,), 0.25)}
    constants[kind][1] = value
    layer = {f"0.{name}": tensor for name, tensor in constants.items()}
    torch.save({**layer, **_named(_network(), "1.")}, tmp_path / "c.pth")
    with pytest.raises(CheckpointError, match="a normalisation by finite numbers"):
        published_network(tmp_path / "c.pth", "resnet20", num_classes=10, image_shape=SHAPE)


@pytest.mark.parametrize("arch", ["imagenet-resnet18", "imagenet-resnet50"])
@torch.no_grad()
def test_networks_for_larger_images_have_the_names_of_torchvision(
    arch: str, tmp_path: Path
) -> None:
    shape = (3, 64, 64)
    model = _network(arch, shape)
    counts = {"imagenet-resnet18": (2, 2, 2, 2), "imagenet-resnet50": (3, 4, 6, 3)}[arch]
    places = [(stage + 1, block) for stage, count in enumerate(counts) for block in range(count)]
    state = {}
    for name, tensor in model[1].state_dict().items():
        own = re.sub(r"^blocks\.(\d+)\.", lambda m: "layer{}.{}.".format(*places[int(m[1])]), name)
        state[f"module.{own.replace('shortcut', 'downsample')}"] = tensor
    torch.save({"state_dict": state}, tmp_path / "checkpoint.pth.tar")
    found, _ = published_network(
        tmp_path / "checkpoint.pth.tar", arch, num_classes=10, image_shape=shape,
        normalize="0.4914,0.4822,0.4465/0.2023,0.1994,0.2010",
    )  # fmt: skip
    images = torch.rand(2, *shape)
    assert torch.equal(found(images), model(images))


class _Attack:
    """Runs a command when it is unpickled the usual way."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("old", [False, True])
def test_nothing_in_a_checkpoint_is_run(tmp_path: Path, old: bool) -> None:
    mark, file = tmp_path / "mark", tmp_path / "checkpoint.pth"
    content = {"state_dict": _named(_network()), "hidden": _Attack(mark)}
    torch.save(content, file, _use_new_zipfile_serialization=not old)
    with pytest.raises(CheckpointError, match="without running code"):
        read_published(file)
    assert not mark.exists()


BAD: dict[str, tuple[Any, str]] = {
    "no weights": ({"epoch": 3}, "a dictionary of weights"),
    "a module": (nn.Linear(2, 2), "without running code"),
    "a list": ([1, 2], "list"),
    "two networks": (
        {"a.conv1.weight": torch.ones(1), "b.fc.weight": torch.ones(1)},
        "b.fc.weight",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_files_without_a_network_are_refused(name: str, tmp_path: Path) -> None:
    content, said = BAD[name]
    torch.save(content, tmp_path / "checkpoint.pth")
    with pytest.raises(CheckpointError, match=said):
        read_published(tmp_path / "checkpoint.pth")


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.pth"
    torch.save(_named(_network()), whole)
    (tmp_path / "half.pth").write_bytes(whole.read_bytes()[:5000])
    (tmp_path / "text.pth").write_text("not a checkpoint")
    for name in ("half.pth", "text.pth", "missing.pth"):
        with pytest.raises(CheckpointError, match=name):
            read_published(tmp_path / name)


@pytest.mark.parametrize(
    ("arch", "classes", "said"),
    [("resnet26", 10, "no stage1.3.conv1.weight"), ("resnet20", 100, r"fc.weight is \(10, 64\)")],
)
def test_what_does_not_fit_is_named(arch: str, classes: int, said: str, tmp_path: Path) -> None:
    torch.save(_named(_network()), tmp_path / "c.pth")
    with pytest.raises(CheckpointError, match=said):
        published_network(
            tmp_path / "c.pth", arch, num_classes=classes, image_shape=SHAPE, normalize="none"
        )


def _changed(model: nn.Sequential, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**_named(model), **{name.replace("__", "."): own for name, own in changed.items()}}


UNUSABLE: dict[str, tuple[Callable[[nn.Sequential], dict[str, torch.Tensor]], str]] = {
    "two networks": (
        lambda m: {**_named(m), "module.conv1.weight": torch.zeros(16, 3, 3, 3)},
        r"conv1\.weight: expected one tensor, got conv1\.weight and module\.conv1\.weight; save",
    ),
    "two heads": (
        lambda m: _changed(m, linear__bias=torch.zeros(10)),
        r"fc\.bias: expected one tensor, got fc\.bias and linear\.bias; save",
    ),
    "sparse": (
        lambda m: _changed(m, fc__weight=torch.eye(10, 64).to_sparse()),
        r"fc\.weight: expected a plain tensor, got sparse_coo; save",
    ),
    "whole numbers": (
        lambda m: _changed(m, fc__weight=torch.ones(10, 64, dtype=torch.int64)),
        r"weights do not fit \(fc\.weight is int64\)",
    ),
    "complex numbers": (
        lambda m: _changed(m, fc__weight=torch.ones(10, 64, dtype=torch.complex64)),
        r"weights do not fit \(fc\.weight is complex64\)",
    ),
    "negative variances": (
        lambda m: _changed(m, bn1__running_var=-torch.ones(16)),
        r"bn1\.running_var: expected variances of at least 0, got -1; download",
    ),
    "the noise level of a layer in front": (
        lambda m: {**_named(m, "1."), "0.mean": torch.zeros(3), "0.sigma": torch.ones(1)},
        r"0\.mean, 0\.sigma: expected the weights of one network",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_unusable_weights_are_named(name: str, tmp_path: Path) -> None:
    make, said = UNUSABLE[name]
    torch.save({"state_dict": make(_network())}, tmp_path / "file.pth")
    with pytest.raises(CheckpointError, match=said):
        published_network(
            tmp_path / "file.pth", "resnet20", num_classes=10, image_shape=SHAPE, normalize="none"
        )


def test_a_torchscript_archive_is_code(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "file.pt")
        with pytest.raises(CheckpointError, match="got a TorchScript archive, which is code; save"):
            read_published(tmp_path / "file.pt")


def test_a_text_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file.pth").write_text("hello")
    with pytest.raises(CheckpointError, match=r"got something else \(\w+: .*\); download it"):
        read_published(tmp_path / "file.pth")


def test_the_normalisation_must_be_known(tmp_path: Path) -> None:
    torch.save(_named(_network()), tmp_path / "c.pth")
    options: dict[str, Any] = {"num_classes": 10, "image_shape": SHAPE}
    with pytest.raises(BadInput, match="normalised"):
        published_network(tmp_path / "c.pth", "resnet20", **options)
    with pytest.raises(BadInput, match="3 channels"):
        published_network(tmp_path / "c.pth", "resnet20", **options, normalize="0.5/0.5")
    with pytest.raises(UnknownName, match=r"package.module:factory"):
        published_network(tmp_path / "c.pth", "resnet21", **options, normalize="none")


@pytest.mark.parametrize(
    "text",
    [
        "cifar",
        "0.5",
        "0.5/0",
        "1,2/3",
        "a,b,c/1,1,1",
        "nan/1",
        "0/nan",
        "inf/1",
        "0/inf",
        "1e300/1",
        "0/1e-320",
    ],
)
def test_other_normalisations_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="MEAN/STD"):
        parse_normalization(text)


def test_a_normalisation_may_be_numbers() -> None:
    assert parse_normalization("0.5,0.4,0.3/0.2,0.2,0.25") == ([0.5, 0.4, 0.3], [0.2, 0.2, 0.25])
