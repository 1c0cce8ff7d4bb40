"""Every registered network keeps the contract of a member."""

import pytest
import torch
from torch import nn

from sween.models import ARCHITECTURES, Normalize, check_member, create_model
from sween.models.cifar_resnet import CifarResNet

SMALL = ["digits-mlp", "digits-conv", "digits-resnet", "resnet20"]
"""Those that the bitwise tests run in batches of a noise block, 100 rows."""


def shape_for(name: str) -> tuple[int, int, int]:
    """The images a network is made for; smaller ones for ImageNet's, which take any size."""
    channels, height, width = ARCHITECTURES[name].image_shape
    return (channels, min(height, 64), min(width, 64))


def build(name: str, *, num_classes: int = 7, seed: int = 0) -> nn.Module:
    return create_model(name, num_classes=num_classes, image_shape=shape_for(name), seed=seed)


def images(name: str, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape_for(name), generator=generator)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_network_maps_its_images_to_logits(name: str) -> None:
    model = build(name)
    check_member(model, num_classes=7, image_shape=shape_for(name))
    with torch.inference_mode():
        assert model.eval()(images(name, 3)).shape == (3, 7)
    assert ARCHITECTURES[name].description


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_seed_alone_decides_the_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError("the caller's GPU generators are not ours to seed")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    state = torch.get_rng_state()
    first = build(name, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.rand(17)
        again = build(name, seed=3)
    assert same_weights(first, again)
    assert not same_weights(first, build(name, seed=4))


@pytest.mark.parametrize("name", SMALL)
def test_normalisation_is_inside_the_network(name: str) -> None:
    channels = shape_for(name)[0]
    mean, std = (0.1, 0.2, 0.3)[:channels], (0.5, 0.25, 2.0)[:channels]
    model = create_model(
        name, num_classes=7, image_shape=shape_for(name), mean=mean, std=std
    ).eval()
    assert isinstance(model, nn.Sequential)
    normalize, body = model
    assert isinstance(normalize, Normalize)
    x = images(name, 4)
    by_hand = (x - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    assert torch.equal(model(x), body(by_hand))
    assert not torch.equal(model(x), body(x))
    assert not list(normalize.parameters()), "the constants are not trained"
    assert {"0.mean", "0.std"} <= model.state_dict().keys(), "the constants travel with the weights"
    plain = build(name)
    assert isinstance(plain, nn.Sequential)
    assert torch.equal(plain[0](x), x), "off by default"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_do_not_depend_on_batch_mates(name: str) -> None:
    model, x = build(name).eval(), images(name, 3)
    with torch.inference_mode():
        together = model(x)
        alone = torch.cat([model(row[None]) for row in x])
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("row", [0, 1, 50, 99])
def test_in_a_fixed_shape_other_rows_do_not_change_a_bit(name: str, row: int) -> None:
    """The votes of an image do not depend on what else is in its forward pass."""
    model, x = build(name).eval(), images(name, 100)
    others = [images(name, 100, seed=1), torch.zeros_like(x), torch.full_like(x, 1e6)]
    with torch.inference_mode():
        expected = model(x)[row]
        for other in others:
            other[row] = x[row]
            assert torch.equal(model(other)[row], expected)


@pytest.mark.parametrize("name", SMALL)
def test_in_a_fixed_shape_the_position_hardly_matters(name: str) -> None:
    """Bitwise equality held on the machines tried; it is the libraries' to promise, not ours."""
    model, x = build(name).eval(), images(name, 100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        expected = model(x)
        moved = [model(x.roll(shift, 0)).roll(-shift, 0) for shift in (1, 37)]
        moved.append(model(x[order])[order.argsort()])
    worst = max((answer - expected).abs().max().item() for answer in moved)
    assert worst < 1e-4


def test_a_cifar_resnet_has_a_depth_of_6n_plus_2() -> None:
    with pytest.raises(ValueError, match=r"6n \+ 2, got 21"):
        CifarResNet(21, 10)


@pytest.mark.parametrize("name", ["digits-mlp", "digits-conv", "digits-resnet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_digits_networks_take_other_channels(name: str, channels: int) -> None:
    model = create_model(name, num_classes=4, image_shape=(channels, 8, 8))
    check_member(model, num_classes=4, image_shape=(channels, 8, 8))
