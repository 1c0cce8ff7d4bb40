"""Linear layers fused with the sums after them: the same outputs, and only where that is right."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sween.engine import cublas_lt, linear_add
from sween.engine.cublas_lt import ALIGNMENT, CublasLtError
from sween.engine.fuse_layers import fuse_layers
from sween.engine.linear_add import LinearAdd

Compute = Callable[[Any, torch.Tensor], torch.Tensor]

CHANNELS_SECOND = (0, 3, 1, 2)


class Own(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Net(nn.Module):
    """A few layers, combined by a function of this module and the batch (2, 4, 5, 6)."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.unbiased, self.own = nn.Linear(6, 6, bias=False), Own(6, 6)
        self.drop, self.norm = nn.Dropout(0.3), nn.LayerNorm(6)
        self.scale, self.one = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(1))
        self.tall = nn.Parameter(torch.randn(6, 1, 1))
        self.rows, self.tiny = nn.Parameter(torch.randn(5, 1)), nn.Parameter(torch.full((6,), 1e-5))
        self.place = nn.Parameter(torch.randn(6, 1, 1))
        self.linear_add_0 = nn.Linear(6, 6)
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x)


def _in_place(net: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net.a(x)
    out += x
    return out


def _onto_the_shortcut(net: Any, x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    y = x.sum()
    x.add_(net.a(x))
    return x * y


def _twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    out = net.a(x)
    return out.relu() + (out + x)  # type: ignore[no-any-return]


def _input_changed(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    out = net.a(y)
    y.mul_(3)
    return out + x  # type: ignore[no-any-return]


def _images(net: Any, x: torch.Tensor) -> torch.Tensor:
    """The batch with its channels in the second place."""
    return x.permute(*CHANNELS_SECOND)


CASES: dict[str, tuple[Compute, int]] = {
    "a block": (lambda net, x: x + net.a(net.norm(x)), 1),
    "the shortcut last": (lambda net, x: net.a(x) + x, 1),
    "dropout between": (lambda net, x: x + net.drop(net.a(x)), 1),
    "two branches": (lambda net, x: net.a(x) + net.b(x), 1),
    "one after the other": (lambda net, x: (y := x + net.a(x)) + net.b(y), 2),
    "the same layer twice": (lambda net, x: (y := x + net.a(x)) + net.a(y), 2),
    "a scale": (lambda net, x: x + net.a(x) * net.scale, 1),
    "a scale first": (lambda net, x: torch.mul(net.scale, net.a(x)) + x, 1),
    "one number": (lambda net, x: x + net.a(x) * net.one, 1),
    "permuted": (lambda net, x: _images(net, x) + _images(net, net.a(x)), 1),
    "permuted by negative axes": (
        lambda net, x: _images(net, x) + torch.permute(net.a(x), (0, -1, 1, 2)), 1
    ),
    "scaled, then permuted": (
        lambda net, x: _images(net, x) + _images(net, net.a(x) * net.scale), 1
    ),
    "permuted, then scaled": (
        lambda net, x: _images(net, x) + net.tall * _images(net, net.a(x)), 1
    ),
    "permuted, then scaled by a view": (
        lambda net, x: _images(net, x) + _images(net, net.a(x)).mul(net.scale.view(1, 6, 1, 1)), 1
    ),
    "scaled on both sides": (
        lambda net, x: _images(net, x) + net.tall * _images(net, net.a(x) * net.scale), 1
    ),
    "a module of that name": (lambda net, x: net.linear_add_0(x.relu()) * (x + net.a(x)), 1),
    "branches side by side": (lambda net, x: x + net.a(net.norm(x)) + net.b(net.norm(x)), 2),
    "a size": (lambda net, x: net.a(x) + x.shape[1], 1),
    "a constant of fewer axes": (lambda net, x: net.place + _images(net, net.a(x)), 1),
    "in place": (_in_place, 1),
    "onto the shortcut": (_onto_the_shortcut, 0),
    "used twice": (_twice, 0),
    "an input that changes": (_input_changed, 0),
    "no bias": (lambda net, x: x + net.unbiased(x), 0),
    "a subclass": (lambda net, x: x + net.own(x), 0),
    "a weighted sum": (lambda net, x: torch.add(x, net.a(x), alpha=2), 0),
    "a number": (lambda net, x: net.a(x) + 1, 0),
    "a scale that float16 would round": (lambda net, x: x + net.tiny * net.a(x), 0),
    "something between": (lambda net, x: x + net.a(x).relu(), 0),
    "a scale of rows": (lambda net, x: x + net.a(x) * net.rows, 0),
    "a scale that is permuted wrongly": (
        lambda net, x: _images(net, x) + _images(net, net.a(x) * net.rows), 0
    ),
    "permuted twice": (lambda net, x: x + net.a(x).permute(0, 2, 1, 3).permute(0, 2, 1, 3), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_outputs_stay_the_same(name: str) -> None:
    compute, wanted = CASES[name]
    net, x = Net(compute).eval(), torch.randn(2, 4, 5, 6)
    fused, before = fuse_layers(net), x.clone()
    assert sum(isinstance(part, LinearAdd) for part in fused.modules()) == wanted
    torch.testing.assert_close(fused(x), net(before), rtol=1e-5, atol=1e-5)


def test_layers_with_hooks_stay() -> None:
    net = Net(CASES["a block"][0]).eval()
    net.a.register_forward_hook(lambda *call: call[-1] * 2)
    assert fuse_layers(net) is net


class Product:
    """Stands for cuBLASLt; counts the calls, or fails."""

    def __init__(self) -> None:
        self.calls, self.error = 0, ""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, added: torch.Tensor, *,
        relu: bool,
    ) -> torch.Tensor:  # fmt: skip
        self.calls += 1
        if self.error:
            raise CublasLtError(self.error)
        assert not relu
        assert added.shape == (len(x), len(weight))
        assert all(own.is_contiguous() for own in (x, weight, bias, added))
        return (x.float() @ weight.float().t() + bias.float() + added.float()).to(x.dtype)


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> Iterator[Product]:
    product = Product()
    monkeypatch.setattr(linear_add, "matmul", product)
    monkeypatch.setattr(linear_add, "has_product", lambda x: x.dtype in cublas_lt.TYPES)
    monkeypatch.setattr(linear_add, "is_aligned", lambda *tensors: True)
    linear_add._UNSUPPORTED.clear()
    yield product
    linear_add._UNSUPPORTED.clear()


@pytest.mark.parametrize("name", ["a block", "scaled, then permuted"])
@torch.no_grad()
def test_the_library_is_called_once(name: str, product: Product) -> None:
    net = Net(CASES[name][0]).eval()
    x = torch.randn(2, 4, 5, 6)
    ours = fuse_layers(net).half()(x.half())
    torch.testing.assert_close(ours.float(), net.float()(x), rtol=2e-2, atol=2e-2)
    assert product.calls == 1


@torch.no_grad()
def test_what_the_library_cannot_do_is_left_to_torch(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = LinearAdd(nn.Linear(6, 6).half(), None)
    x = torch.randn(3, 5, 6).half()
    wanted = x + part.linear(x)
    for shortcut in (x.float(), x[:1], x.transpose(0, 1).contiguous().transpose(0, 1)):
        torch.testing.assert_close(part(x, shortcut), shortcut + part.linear(x))
    assert product.calls == 0, "another type, another shape, another order in memory"
    product.error = "no kernel"
    for _ in range(2):
        assert torch.equal(part(x, x), wanted)
    assert product.calls == 1, "it is asked once"
    linear_add._UNSUPPORTED.clear()
    product.error = "CUBLAS_STATUS_ALLOC_FAILED"
    with pytest.raises(CublasLtError, match="ALLOC_FAILED"):
        part(x, x)
    monkeypatch.setattr(linear_add, "is_aligned", lambda *tensors: False)
    assert torch.equal(part(x, x), wanted)
    assert ALIGNMENT == 256


@torch.no_grad()
def test_the_compiler_knows_its_order_in_memory() -> None:
    x, shortcut = torch.randn(2, 4, 6), torch.randn(2, 6, 4).transpose(1, 2)
    layer = nn.Linear(6, 6)
    arguments = (x, layer.weight.detach(), layer.bias.detach())
    for own in (shortcut, x):
        torch.library.opcheck(linear_add.linear_add, (*arguments, own))


@torch.no_grad()
def test_the_compiler_takes_it_as_it_is() -> None:
    net, x = Net(CASES["permuted"][0]).eval(), torch.randn(2, 4, 5, 6)
    compiled = torch.compile(fuse_layers(net), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
