"""Networks whose code allows one layout of memory only."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine.preparation import Preparation
from sween.engine.prepare import prepare
from sween.errors import ContractError, ContractWarning
from sween.smoothing import SmoothedClassifier
from sween.training.trainer import takes_channels_last

CPU = torch.device("cpu")


class LeNet(nn.Module):
    """As in torch's tutorial: `view` needs channels first."""

    def __init__(self, *, norm: bool = False, branches: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.norm = nn.BatchNorm2d(16) if norm else nn.Identity()
        self.linear, self.branches = nn.Linear(16 * 5 * 5, 10), branches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.branches and float(x.abs().max()) > 1e6:  # which tracing cannot follow
            return self.linear(torch.zeros(len(x), 400))  # type: ignore[no-any-return]
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.norm(self.conv2(x))), 2)
        return self.linear(x.view(-1, 16 * 5 * 5))  # type: ignore[no-any-return]


class Strided(LeNet):
    """Reads memory in its own order, and raises no error if that is another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.conv2(functional.max_pool2d(self.conv1(x), 2)), 2)
        return self.linear(x.as_strided((len(x), 400), (400, 1)))  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: LeNet(),
    "batch norm": lambda: LeNet(norm=True),
    "not traceable": lambda: LeNet(norm=True, branches=True),
    "strides": lambda: Strided(),
    "in parallel": lambda: nn.DataParallel(LeNet(norm=True)),
    "with a layer in front": lambda: nn.Sequential(nn.Conv2d(3, 3, 1), LeNet()),
}


def _read(name: str) -> AbstractContextManager[object]:
    """What is said of code that reads the values of pixels."""
    if name != "not traceable":
        return contextlib.nullcontext()
    return pytest.warns(ContractWarning, match="one at a time")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_networks_with_views_are_prepared(name: str, precision: str) -> None:
    network, images = NETWORKS[name]().eval(), torch.rand(7, 3, 32, 32)
    with _read(name):
        prepared = prepare(network, Preparation(precision), images)
    assert torch.allclose(prepared.run(images), network(images), atol=0.02)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_views_are_certified(name: str) -> None:
    smoothed = SmoothedClassifier(NETWORKS[name]().eval(), sigma=0.25, num_classes=10)
    with _read(name):
        certificate = smoothed.certify_one(torch.rand(3, 32, 32), n0=10, n=100)
    assert sum(certificate.estimation_counts) == 100


def test_training_takes_them_channels_first() -> None:
    assert not takes_channels_last(LeNet(), (3, 32, 32), CPU)
    assert takes_channels_last(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), (3, 8, 8), CPU)


def test_a_layer_without_numbers_gets_one_line() -> None:
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(10)).eval()
    with pytest.raises(ContractError, match="uninitialized parameter") as caught:
        SmoothedClassifier(network, sigma=0.25, num_classes=10).certify_one(torch.rand(3, 8, 8))
    assert len(str(caught.value).splitlines()) == 1


class Refusing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x.flatten(1))
        if out.dtype != torch.float32:
            raise TypeError("only float32 here")
        return out  # type: ignore[no-any-return]


def test_a_network_that_refuses_a_precision_gets_one_line() -> None:
    with pytest.raises(ContractError, match=r"bfloat16.*only float32 here.*float32 precision"):
        prepare(Refusing().eval(), Preparation("bfloat16"), torch.rand(2, 3, 2, 2))
