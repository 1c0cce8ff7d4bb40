"""Attention that is written out becomes one call, with the same outputs, where that is right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine.fuse_layers import fuse_layers

HEADS, WIDTH = 2, 4
SCALE = WIDTH**-0.5

Mix = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of a module, queries, keys and values."""


class Net(nn.Module):
    """Attention whose inside is given as a function."""

    def __init__(self, mix: Mix, *, heads: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        size = HEADS * WIDTH if heads else WIDTH
        self.qkv, self.heads, self.mix = nn.Linear(6, 3 * size), heads, mix
        self.softmax, self.columns = nn.Softmax(dim=-1), nn.Softmax(dim=-2)
        self.drop, self.temperature = nn.Dropout(0.5), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        if not self.heads:
            parts = self.qkv(x).chunk(3, dim=-1)
            return self.mix(self, parts[0], parts[1], parts[2])
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        out = self.mix(self, qkv[0], qkv[1], qkv[2])
        return out.transpose(1, 2).reshape(batch, tokens, HEADS * WIDTH)


def _changed(net: Net, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    q.mul_(0.999)
    return scores.softmax(dim=-1) @ v + q


def _set(net: Net, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    v[..., 0] = 0.1
    return scores.softmax(dim=-1) @ v


def _in_place_before(net: Net, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    v.mul_(0.999)  # its result is not used by name, but it must run
    return (q @ k.mT).softmax(dim=-1) @ v


def _used_twice(net: Net, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
    return weights @ v + weights.sum()


CASES: dict[str, tuple[Mix, bool]] = {
    "timm": (
        lambda net, q, k, v: net.drop((q * SCALE @ k.transpose(-2, -1)).softmax(-1)) @ v,
        True,
    ),
    "scaled": (lambda net, q, k, v: (q @ k.transpose(-2, -1) * SCALE).softmax(dim=-1) @ v, True),
    "number first": (lambda net, q, k, v: (SCALE * (q @ k.mT)).softmax(dim=-1) @ v, True),
    "divided": (
        lambda net, q, k, v: torch.matmul(
            torch.softmax(torch.matmul(q, k.transpose(2, 3)) / 2, dim=-1), v
        ),
        True,
    ),
    "layer": (lambda net, q, k, v: net.softmax(q.matmul(k.transpose(-1, -2))).matmul(v), True),
    "function": (
        lambda net, q, k, v: functional.softmax(q @ torch.transpose(k, 3, 2), dim=-1) @ v,
        True,
    ),
    "by keyword": (lambda net, q, k, v: torch.softmax(input=q @ k.mT, dim=-1) @ v, True),
    "values changed before": (_in_place_before, True),
    "queries changed between": (_changed, False),
    "values set between": (_set, False),
    "over the queries": (lambda net, q, k, v: (q @ k.mT).softmax(dim=-2) @ v, False),
    "a layer over the queries": (lambda net, q, k, v: net.columns(q @ k.mT) @ v, False),
    "keys as they are": (lambda net, q, k, v: (q @ k).softmax(dim=-1) @ v, False),
    "heads transposed": (lambda net, q, k, v: (q @ k.transpose(0, 1)).softmax(-1) @ v, False),
    "a learned scale": (lambda net, q, k, v: (q @ k.mT * net.temperature).softmax(-1) @ v, False),
    "a bias": (lambda net, q, k, v: (q @ k.mT + 1 / (1 + q.abs().sum())).softmax(-1) @ v, False),
    "divided by scores": (lambda net, q, k, v: (1 / (q @ k.mT)).softmax(-1) @ v, False),
    "in another type": (
        lambda net, q, k, v: (q @ k.mT).softmax(-1, dtype=torch.float64).float() @ v,
        False,
    ),
    "weights used twice": (_used_twice, False),
    "no softmax": (lambda net, q, k, v: (q @ k.mT) @ v, False),
    "values first": (lambda net, q, k, v: v.mT @ (q @ k.mT).softmax(dim=-1), False),
    "its own": (lambda net, q, k, v: functional.scaled_dot_product_attention(q, k, v), False),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_outputs_stay_the_same(name: str) -> None:
    mix, wanted = CASES[name]
    tokens = WIDTH if name in ("keys as they are", "heads transposed") else 5
    batch = HEADS if name == "heads transposed" else 3
    net, x = Net(mix).eval(), torch.randn(batch, tokens, 6)
    fused = fuse_layers(net)
    assert (fused is not net) == wanted
    if wanted:
        assert "softmax" not in str(getattr(fused, "graph", ""))
    torch.testing.assert_close(fused(x), net(x), rtol=1e-5, atol=1e-6)
    if name == "values changed before":
        assert "mul_" in str(getattr(fused, "graph", ""))


@torch.no_grad()
def test_one_head_by_bmm() -> None:
    net = Net(
        lambda net, q, k, v: torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1), v),
        heads=False,
    ).eval()
    x = torch.randn(3, 5, 6)
    fused = fuse_layers(net)
    assert fused is not net
    torch.testing.assert_close(fused(x), net(x), rtol=1e-5, atol=1e-6)


def test_softmax_with_hooks_stays() -> None:
    net = Net(CASES["layer"][0]).eval()
    net.softmax.register_forward_hook(lambda module, given, out: out.square())
    assert fuse_layers(net) is net


@torch.no_grad()
def test_a_transposition_of_other_axes_is_left_as_it_is() -> None:
    """Axes 2 and 3 are the last two of four only, axes 1 and 2 of three: sizes tell nothing."""

    def mix(net: Net, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        five = [own[:, :, None].expand(-1, -1, WIDTH, -1, -1) for own in (q, k, v)]
        scores = five[0] @ five[1].transpose(2, 3)
        return (scores.softmax(dim=-1) @ five[2]).mean(dim=2)

    def tokens_and_heads(
        net: Net, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        cubes = [own[:, :1].expand(-1, WIDTH, -1, -1) for own in (q, k, v)]
        scores = cubes[0] @ cubes[1].transpose(1, 2)
        return (scores.softmax(dim=-1) @ cubes[2])[:, :HEADS]

    for mixed in (mix, tokens_and_heads):
        net, x = Net(mixed).eval(), torch.randn(3, WIDTH, 6)
        fused = fuse_layers(net)
        assert fused is not net
        torch.testing.assert_close(fused(x), net(x), rtol=1e-5, atol=1e-6)
