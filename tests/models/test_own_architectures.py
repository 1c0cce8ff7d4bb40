"""Networks that do not come with sween: registered, imported by name, or timm's."""

import dataclasses
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sween
from sween.errors import BadInput, CheckpointError, MissingExtra, UnknownName
from sween.models import (
    ARCHITECTURES,
    Manifest,
    Normalize,
    check_member,
    create_model,
    list_models,
    load_checkpoint,
    register_architecture,
    save_checkpoint,
)

SHAPE = (3, 6, 5)
MANIFEST = Manifest(
    arch="tiny",
    num_classes=4,
    image_shape=SHAPE,
    dataset="digits",
    class_names=("a", "b", "c", "d"),
    sigma=0.5,
    training={},
)


def tiny(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(image_shape).numel(), num_classes))


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(ARCHITECTURES)
    yield
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


def saved(model: nn.Module, path: Path, arch: str) -> Path:
    save_checkpoint(model, path, dataclasses.replace(MANIFEST, arch=arch))
    return path


def reloads(arch: str, path: Path, *, named: str | None = None) -> nn.Module:
    """The network of a name, after its checkpoint gave back the same logits."""
    model = create_model(arch, num_classes=4, image_shape=SHAPE, seed=1).eval()
    check_member(model, num_classes=4, image_shape=SHAPE)
    images = torch.rand(3, *SHAPE)
    again, _ = load_checkpoint(saved(model, path, arch), arch=named)
    assert torch.equal(model(images), again(images))
    return model


def test_a_registered_network_is_like_any_other(tmp_path: Path) -> None:
    assert register_architecture("tiny", tiny, image_shape=SHAPE) is tiny
    assert "tiny" in list_models()
    assert not any(
        isinstance(part, Normalize) for part in reloads("tiny", tmp_path / "a").modules()
    )
    assert sween.load(tmp_path / "a").member_names == ("tiny",)


def test_registering_by_decorator_with_normalisation() -> None:
    @register_architecture("tiny", image_shape=SHAPE, description="linear", normalize=True)
    def make(num_classes: int, channels: int) -> nn.Module:
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
        )

    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    assert torch.equal(normalisation("tiny", mean=mean, std=std).mean.flatten(), torch.tensor(mean))
    assert make.__name__ == "make"


def test_ones_own_name_may_be_registered_again_but_not_one_of_sweens() -> None:
    for factory in (nn.Identity, tiny):
        register_architecture("tiny", factory, image_shape=SHAPE)
    assert ARCHITECTURES["tiny"].build is tiny
    with pytest.raises(UnknownName, match="did you mean 'tiny'"):
        normalisation("tinny")
    for name, words in (("resnet20", "not built in"), ("a:b", "letters"), ("", "''")):
        with pytest.raises(BadInput, match=f"architecture name: .*{words}"):
            register_architecture(name, tiny, image_shape=SHAPE)


def test_a_factory_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "class Nets:\n"
        "    @staticmethod\n"
        "    def make(num_classes, image_shape):\n"
        "        return nn.Sequential(nn.Flatten(), nn.Linear(image_shape[0] * 30, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    arch = "own_networks:Nets.make"
    reloads(arch, tmp_path / "a.safetensors", named=arch)
    assert sween.load(tmp_path / "a.safetensors", archs=[arch]).num_classes == 4
    del sys.modules["own_networks"]
    with pytest.raises(CheckpointError, match=rf"pass `archs=\['{arch}'\]`"):
        sween.load(tmp_path / "a.safetensors", archs=["own_networks:other"])
    assert "own_networks" not in sys.modules


@dataclasses.dataclass
class FakeConfig:
    mean: tuple[float, ...] = (0.4, 0.5, 0.6)
    std: tuple[float, ...] = (0.1, 0.2, 0.3)
    fixed_input_size: bool = False


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands for timm, with one network for any size and one for a fixed one; notes the calls."""
    calls = list[dict[str, Any]]()
    configs = {
        "anysize": FakeConfig(),
        "anysize.tag": FakeConfig(std=(0.5, 0.5, 0.5)),
        "fixed": FakeConfig(fixed_input_size=True),
    }

    def get_pretrained_cfg(name: str) -> FakeConfig:
        if name not in configs:
            raise RuntimeError(f"Invalid pretrained tag in {name}")
        return configs[name]

    def create(name: str, **options: Any) -> nn.Module:
        calls.append({"name": name, **options})
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))

    module = types.ModuleType("timm")
    module.__dict__.update(
        is_model=lambda name: name.split(".")[0] in {"anysize", "fixed"},
        list_models=lambda: ["anysize", "fixed"],
        get_pretrained_cfg=get_pretrained_cfg,
        create_model=create,
    )
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


def normalisation(name: str, shape: tuple[int, int, int] = SHAPE, **options: Any) -> Normalize:
    model = create_model(name, num_classes=4, image_shape=shape, **options)
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[0], Normalize)
    return model[0]


def test_a_timm_network_gets_its_normalisation_and_size(fake_timm: list[dict[str, Any]]) -> None:
    wanted = torch.tensor([0.4, 0.5, 0.6])
    assert torch.equal(normalisation("timm:anysize").mean.flatten(), wanted)
    assert normalisation("timm:anysize.tag").std.flatten().tolist() == [0.5] * 3
    assert normalisation("timm:fixed", (1, 6, 5)).mean.flatten().tolist() == [0.5]
    common = {"pretrained": False, "num_classes": 4}
    assert fake_timm == [
        {"name": "anysize", "in_chans": 3, **common},
        {"name": "anysize.tag", "in_chans": 3, **common},
        {"name": "fixed", "in_chans": 1, "img_size": (6, 5), **common},
    ]


@pytest.mark.usefixtures("fake_timm")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:anysiz", "did you mean timm:anysize"),
        ("timm:hf-hub:stranger/model", "timm.list_models"),
        ("timm:local-dir:/tmp", "timm.list_models"),
        ("timm:", "timm.list_models"),
        ("timm:anysize.other", "Invalid pretrained tag"),
    ],
)
def test_a_name_that_timm_does_not_list(name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        normalisation(name)
    assert len(str(caught.value).splitlines()) == 1


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"'timm:resnet18' needs timm.*pip install 'sween\[timm"):
        normalisation("timm:resnet18")


def test_with_a_torchvision_for_another_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = 'raise RuntimeError("operator torchvision::nms does not exist")'
    (tmp_path / "timm.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(BadInput, match=r"nms does not exist.*torch and torchvision together"):
        normalisation("timm:resnet18")


def test_real_timm_networks(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    reloads("timm:resnet18", tmp_path / "resnet")
    model = create_model("timm:vit_tiny_patch16_224", num_classes=4, image_shape=(3, 64, 64))
    check_member(model, num_classes=4, image_shape=(3, 64, 64))
