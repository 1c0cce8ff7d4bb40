"""Linear layers fused with the gelus after them: the same outputs, and only where that is right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine import linear_gelu
from sween.engine.fuse_layers import fuse_layers
from sween.engine.linear_gelu import LinearGelu

Compute = Callable[[Any, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A few layers, combined by a function of this module and the batch."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 6)
        self.unbiased, self.own = nn.Linear(6, 8, bias=False), Own(6, 8)
        self.gelu, self.tanh, self.drop = nn.GELU(), nn.GELU("tanh"), nn.Dropout(0.3)
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)


class Own(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def _twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    out = net.a(x)
    return net.gelu(out) + out  # type: ignore[no-any-return]


CASES: dict[str, tuple[Compute, int]] = {
    "layers": (lambda net, x: net.b(net.gelu(net.a(x))), 1),
    "function": (lambda net, x: functional.gelu(net.a(x)), 1),
    "tanh": (lambda net, x: net.tanh(net.a(x)), 1),
    "tanh by function": (lambda net, x: functional.gelu(net.a(x), approximate="tanh"), 1),
    "dropout between": (lambda net, x: net.gelu(net.drop(net.a(x))), 1),
    "the same layer twice": (lambda net, x: net.gelu(net.a(net.b(net.gelu(net.a(x))))), 2),
    "used twice": (_twice, 0),
    "no bias": (lambda net, x: net.gelu(net.unbiased(x)), 0),
    "a subclass": (lambda net, x: net.gelu(net.own(x)), 0),
    "something between": (lambda net, x: net.gelu(net.a(x) + 1), 0),
    "of the input": (lambda net, x: net.gelu(x), 0),
}


def _fused(module: nn.Module) -> int:
    return sum(isinstance(part, LinearGelu) for part in module.modules())


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_outputs_stay_the_same(name: str) -> None:
    compute, wanted = CASES[name]
    net, x = Net(compute).eval(), torch.randn(3, 5, 6)
    fused = fuse_layers(net)
    assert _fused(fused) == wanted
    assert (fused is net) == (wanted == 0)
    assert torch.equal(fused(x), net(x))


@torch.no_grad()
def test_the_librarys_gelu_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_gelu, "has_fused_gelu", lambda x: True)
    net = Net(CASES["layers"][0]).eval()
    x = 3 * torch.randn(3, 5, 6)
    ours, exact = fuse_layers(net)(x), net(x)
    assert float((ours - exact).abs().max()) < 2e-3
    compiled = torch.compile(fuse_layers(net), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), ours)


def test_layers_with_hooks_stay() -> None:
    net = Net(CASES["layers"][0]).eval()
    net.a.register_forward_hook(lambda *call: call[-1] * 2)
    assert fuse_layers(net) is net
