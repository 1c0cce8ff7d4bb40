"""Hooks, replaced forwards and shared weights: the prepared network computes what the module does.

The changes are small, so that the comparison of outputs at preparation would not notice them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils import spectral_norm as hooked_spectral_norm

from sween.engine import Preparation
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import fuse_layers
from sween.engine.kernels import is_cifar_resnet
from sween.engine.kernels.recognise import as_cifar_resnet
from sween.engine.member import Member
from sween.engine.patch_convolution import use_patches
from sween.engine.prepare import prepare
from sween.ensemble import WeightedEnsemble
from sween.errors import ContractError
from tests.engine.kernels.networks import norms_of, trained_looking, with_statistics
from tests.engine.kernels.strangers import ResNet
from tests.smoothing.small import smoothed

SHIFT = 1e-3
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Layers that every pass would like to fold or to fuse."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 4, 4, 4)
        self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Identity(), nn.ReLU())
        self.shortcut = nn.Conv2d(4, 4, 1)
        self.linear, self.gelu, self.head = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 5)
        with_statistics(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.conv(self.patches(x))))
        x = torch.relu(self.body(x) + self.shortcut(x)).mean(dim=(2, 3))
        return self.head(self.gelu(self.linear(x)))  # type: ignore[no-any-return]


def test_layers_are_left_as_they_are_where_torch_is_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As libraries do that round weights in every convolution."""
    plain = nn.Conv2d._conv_forward

    def rounded(
        self: nn.Conv2d, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        found: torch.Tensor = plain(self, images, (weight * 64).round() / 64, bias)
        return found

    net = Net().eval()
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", rounded)
    with torch.no_grad():
        torch.testing.assert_close(fold_batch_norm(net)(IMAGES), net(IMAGES))
        torch.testing.assert_close(fuse_layers(net)(IMAGES), net(IMAGES))


def _after(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output + SHIFT * output.detach().square()


def _before(_module: nn.Module, inputs: Any) -> torch.Tensor:
    return inputs[0] + SHIFT * inputs[0].square()  # type: ignore[no-any-return]


def _replace_forward(part: nn.Module) -> None:
    own = type(part).forward
    part.forward = lambda x: own(part, x) + SHIFT


WAYS: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda part: part.register_forward_hook(_after),
    "pre-hook": lambda part: part.register_forward_pre_hook(_before),
    "forward": _replace_forward,
}
NAMES = [name for name, _ in Net().named_modules()]


def _passes(module: nn.Module) -> Iterator[nn.Module]:
    """After each pass of `prepare`."""
    yield fold_batch_norm(module)
    fused = fuse_layers(fold_batch_norm(module))
    yield fused
    use_patches(fused)
    yield fused


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name or "itself")
@torch.no_grad()
def test_what_was_put_on_a_module_runs_after_every_pass(name: str, way: str) -> None:
    plain, net = Net()(IMAGES), Net()
    WAYS[way](net.get_submodule(name))
    wanted = net(IMAGES)
    assert float((wanted - plain).abs().max()) > 1e-6, "too small a change to be noticed"
    for prepared in _passes(net):
        torch.testing.assert_close(prepared(IMAGES), wanted, atol=1e-7, rtol=1e-5)
    run = prepare(net, Preparation(), IMAGES).run
    torch.testing.assert_close(run(IMAGES), wanted, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_what_is_put_on_a_module_between_calls_is_noticed(way: str) -> None:
    net = Net()
    member = Member(net, Preparation())
    member.refresh(IMAGES)
    WAYS[way](net.conv)
    assert not member.is_current(IMAGES.shape)
    member.refresh(IMAGES)
    torch.testing.assert_close(member(IMAGES), net(IMAGES), atol=1e-7, rtol=1e-5)


@torch.no_grad()
def test_nothing_is_folded_where_hooks_watch_all_modules() -> None:
    net = Net()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert len(norms_of(fold_batch_norm(net))) == 2
        assert not is_cifar_resnet(trained_looking("resnet20"), (3, 32, 32))
    finally:
        handle.remove()
    assert not norms_of(fold_batch_norm(net))


NORMALISED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral norm by a hook": hooked_spectral_norm,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("how", NORMALISED)
@pytest.mark.parametrize("name", ["patches", "conv", "body.0", "shortcut", "linear", "head"])
@torch.no_grad()
def test_layers_whose_weights_are_computed_stay_as_they_are(name: str, how: str) -> None:
    net = Net()
    NORMALISED[how](net.get_submodule(name))
    net.eval()
    wanted = net(IMAGES)
    for prepared in _passes(net):
        torch.testing.assert_close(prepared(IMAGES), wanted, atol=1e-7, rtol=1e-5)


class Reading(Net):
    """Reads the weights of layers besides calling them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        read = functional.conv2d(x, self.conv.weight, self.conv.bias)
        x = self.relu(self.norm(self.conv(x)) + SHIFT * read)
        x = torch.relu(self.body(x) + self.shortcut(x)).mean(dim=(2, 3))
        assert self.shortcut.bias is not None
        x = x + SHIFT * self.shortcut.bias
        return self.head(self.gelu(self.linear(x)))  # type: ignore[no-any-return]


@torch.no_grad()
def test_weights_that_are_read_elsewhere_are_not_changed() -> None:
    net = Reading().eval()
    assert net.shortcut.bias is not None
    net.shortcut.bias.fill_(3)
    wanted = net(IMAGES)
    for prepared in _passes(net):
        torch.testing.assert_close(prepared(IMAGES), wanted, atol=1e-7, rtol=1e-5)


class Tokens(nn.Module):
    """A batch norm of 32 tokens, after a linear layer of some number of features."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(32, features), nn.BatchNorm1d(32)
        with_statistics(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x.mean(dim=1))).mean(dim=1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("features", [5, 32])
@torch.no_grad()
def test_a_norm_of_tokens_is_not_folded_into_features(features: int) -> None:
    net = Tokens(features)
    torch.testing.assert_close(fold_batch_norm(net)(IMAGES), net(IMAGES))


@torch.no_grad()
def test_a_norm_in_training_mode_is_not_folded() -> None:
    net = Net()
    net.norm.train()
    assert norms_of(fold_batch_norm(net)) != []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["", "0", "1", "1.stage2.0", "1.stage2.0.conv1", "1.bn1"])
def test_the_kernels_do_not_run_registered_networks_with_hooks(name: str, way: str) -> None:
    net = trained_looking("resnet20")
    assert is_cifar_resnet(net, (3, 32, 32))
    WAYS[way](net.get_submodule(name))
    assert not is_cifar_resnet(net, (3, 32, 32))


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_hooks_around_a_recognised_network_are_not_left_out(way: str) -> None:
    net = nn.DataParallel(with_statistics(ResNet())).eval()
    assert as_cifar_resnet(net, IMAGES) is not None
    WAYS[way](net)
    found = as_cifar_resnet(net, IMAGES)
    if found is not None:
        torch.testing.assert_close(found(IMAGES), net(IMAGES), atol=1e-6, rtol=1e-5)


class Sharper(WeightedEnsemble):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.softmax(100 * super().forward(images), dim=1)


@pytest.mark.parametrize("way", [*WAYS, "subclass"])
def test_an_ensemble_that_computes_more_than_its_members_is_refused(way: str) -> None:
    members = [Net(), Net()]
    ensemble = Sharper(members) if way == "subclass" else WeightedEnsemble(members)
    if way != "subclass":
        WAYS[way](ensemble)
    with pytest.raises(ContractError, match="wrap the ensemble in a module"):
        smoothed(ensemble, num_classes=5).certify(IMAGES[:1], n=100)
