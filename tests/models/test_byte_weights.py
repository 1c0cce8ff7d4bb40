"""Weights in 8 bits: what is stored is what is in memory."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from sween.engine.kernels import QuantizedResNet
from sween.errors import CheckpointError
from sween.models import Manifest, create_model, load_checkpoint, save_checkpoint
from sween.models.activation_ranges import measure_ranges
from sween.models.byte_weights import packed, round_weights, unpacked
from tests.engine.kernels.networks import with_statistics

MANIFEST = Manifest(
    arch="resnet20",
    num_classes=10,
    image_shape=(3, 32, 32),
    dataset="cifar10",
    class_names=tuple("0123456789"),
    sigma=0.5,
    training={"seed": 0},
)


def _network() -> nn.Module:
    model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32), seed=1)
    return with_statistics(model)


def test_a_file_holds_the_weights_in_memory_in_a_quarter_of_the_space(tmp_path: Path) -> None:
    model = _network()
    plain, small = tmp_path / "plain.safetensors", tmp_path / "small.safetensors"
    round_weights(model)
    save_checkpoint(model, plain, MANIFEST)
    saved = save_checkpoint(model, small, MANIFEST, as_bytes=True)
    found, manifest = load_checkpoint(small)
    assert manifest == saved
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert small.stat().st_size < 0.3 * plain.stat().st_size


def test_rounding_is_to_the_nearest_and_keeps_zeros() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    layer = model[0]
    assert isinstance(layer, nn.Conv2d)
    with torch.no_grad():
        layer.weight[1] = 0
        layer.weight[2] *= 1e-30
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    round_weights(model)
    for name, tensor in model.state_dict().items():
        if tensor.ndim < 2:
            assert torch.equal(tensor, before[name])
            continue
        flat, was = tensor.flatten(1), before[name].flatten(1)
        step = was.abs().amax(dim=1, keepdim=True) / 127
        assert bool(((flat - was).abs() <= 0.501 * step).all())
    assert bool((layer.weight[1] == 0).all())
    state = model.state_dict()
    assert all(torch.equal(unpacked(packed(state))[name], own) for name, own in state.items())


def test_weights_that_were_not_rounded_are_refused() -> None:
    with pytest.raises(ValueError, match="not rounded"):
        packed(_network().state_dict())


def test_other_states_are_left_alone() -> None:
    state = {"codes": torch.zeros(3, 2, dtype=torch.int8), "x_scale": torch.ones(3)}
    assert unpacked(state).keys() == state.keys()


@torch.no_grad()
def test_networks_in_integers_lose_nothing_by_it() -> None:
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = _network()
    measure_ranges(model, [images])
    before = QuantizedResNet(model)
    round_weights(model)
    after = QuantizedResNet(model)
    pairs = zip(sum(before.blocks, ()), sum(after.blocks, ()), strict=True)
    for ours, theirs in [(before.first, after.first), *pairs]:
        apart = (ours.weight.float() - theirs.weight.float()).abs()
        assert float(apart.max()) <= 1  # halfway between two numbers
        assert float(apart.mean()) < 1e-3


def test_a_missing_scale_is_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", _network()
    round_weights(model)
    save_checkpoint(model, path, MANIFEST, as_bytes=True)
    with safe_open(path, framework="pt") as stream:
        header = stream.metadata()
        names = stream.keys()
        tensors = {name: stream.get_tensor(name) for name in names}
    del tensors["1.conv1.weight_scale"]
    save_file(tensors, path, metadata=header)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
