"""Convolutions with windows that do not overlap, as matrix products: where and what."""

from typing import Any

import pytest
import torch
from torch import nn

from sween.engine.patch_convolution import PatchConvolution, use_patches

PATCHES: dict[str, dict[str, Any]] = {
    "square": {"kernel_size": 4, "stride": 4},
    "oblong": {"kernel_size": (2, 4), "stride": (2, 4)},
    "without bias": {"kernel_size": 2, "stride": 2, "bias": False},
    "padding by name": {"kernel_size": 2, "stride": 2, "padding": "valid"},
}
OTHERS: dict[str, dict[str, Any]] = {
    "a point": {"kernel_size": 1},
    "overlapping": {"kernel_size": 3, "stride": 2},
    "apart": {"kernel_size": 2, "stride": 3},
    "padded": {"kernel_size": 2, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 2, "stride": 2, "dilation": 2},
    "groups": {"kernel_size": 2, "stride": 2, "groups": 3},
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(8, 8), (11, 9)])
@pytest.mark.parametrize("name", PATCHES)
@torch.no_grad()
def test_same_outputs(name: str, size: tuple[int, int], layout: torch.memory_format) -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, **PATCHES[name]))
    images = torch.randn(2, 3, *size).contiguous(memory_format=layout)
    wanted = net(images)
    use_patches(net)
    assert type(net[0]) is PatchConvolution
    got = net(images)
    torch.testing.assert_close(got, wanted)
    assert got.is_contiguous(memory_format=torch.channels_last)


class Subclass(nn.Conv2d):
    """May do anything."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_are_left_alone(name: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, **OTHERS[name]), Subclass(3, 3, 2, 2))
    use_patches(net)
    assert [type(part) for part in net] == [nn.Conv2d, Subclass]


def test_a_convolution_with_a_hook_is_left_alone() -> None:
    net = nn.Conv2d(3, 3, 2, 2)
    net.register_forward_hook(lambda module, inputs, output: 2 * output)
    use_patches(net)
    assert type(net) is nn.Conv2d
