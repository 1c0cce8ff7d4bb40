"""Depthwise convolutions: the kernel, emulated, and what it replaces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sween.cuda import Argument, read_source
from sween.engine import depthwise_convolution as subject
from sween.engine.arithmetic import InArithmetic
from sween.engine.depthwise_convolution import (
    DepthwiseConvolution,
    Form,
    depthwise_convolution,
    form_for,
    suits,
)
from sween.engine.fuse_layers import fuse_layers
from sween.errors import PreparationWarning
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import FormEmulator


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> FormEmulator:
    folder = tmp_path_factory.mktemp("emulator")
    return FormEmulator(folder, compiler(), subject.FILES, "depthwise_convolution")


@pytest.fixture
def launch(kernels: FormEmulator, monkeypatch: pytest.MonkeyPatch) -> FormEmulator:
    monkeypatch.setattr(subject, "launch", kernels)
    monkeypatch.setattr(subject, "can_compile", lambda _device: True)
    kernels.launches = 0
    return kernels


def _conv(channels: int, side: int, **options: Any) -> nn.Conv2d:
    torch.manual_seed(channels)
    return nn.Conv2d(channels, channels, side, padding=side // 2, groups=channels, **options)


def _last(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    some = torch.randn(shape, generator=generator).half()
    return some.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("shape", "side"),
    [((2, 6, 7, 14), 7), ((1, 34, 5, 9), 7), ((3, 2, 1, 1), 7), ((2, 10, 6, 8), 3)],
    ids=str,
)
@torch.no_grad()
def test_the_kernel(launch: FormEmulator, shape: tuple[int, ...], side: int) -> None:
    conv, x = _conv(shape[1], side), _last(*shape)
    part = DepthwiseConvolution(conv)
    out = depthwise_convolution(x, part.packed, part.bias)
    conv.weight.copy_(conv.weight.half())
    wanted = conv(x.float())
    torch.testing.assert_close(out.float(), wanted, rtol=1e-3, atol=1e-3)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert launch.faults == 0


@torch.no_grad()
def test_whole_numbers_come_out_exactly_wherever_an_image_is(launch: FormEmulator) -> None:
    conv = _conv(8, 5)
    for own in conv.parameters():
        own.copy_(torch.randint(-3, 4, own.shape))
    x = torch.randint(-4, 5, (3, 8, 11, 13)).half().contiguous(memory_format=torch.channels_last)
    part = DepthwiseConvolution(conv)
    out = depthwise_convolution(x, part.packed, part.bias)
    assert torch.equal(out.float(), conv(x.float()))
    alone = x[1:2].contiguous(memory_format=torch.channels_last)
    assert torch.equal(depthwise_convolution(alone, part.packed, part.bias), out[1:2])


@torch.no_grad()
def test_what_is_not_a_number_stays_so(launch: FormEmulator) -> None:
    part, x = DepthwiseConvolution(_conv(2, 3)), _last(1, 2, 6, 6)
    x[0, 1, 2, 3] = torch.nan
    out = depthwise_convolution(x, part.packed, part.bias)
    assert torch.equal(out[0, 1].isnan().nonzero().amin(0), torch.tensor([1, 2]))
    assert int(out.isnan().sum()) == 9


class Net(nn.Module):
    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv, self.linear = conv, nn.Linear(conv.out_channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.conv(x).mean(dim=(2, 3)))
        return out


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_a_network_runs_by_it(launch: FormEmulator, bias: bool) -> None:
    net, images = Net(_conv(8, 7, bias=bias)).eval(), _last(2, 8, 9, 9).float()
    fused = fuse_layers(net)
    assert torch.equal(fused(images), net(images))
    (part,) = (own for own in fused.modules() if isinstance(own, DepthwiseConvolution))
    part.let_run(images, torch.float16)
    assert part.by_kernel
    ready = InArithmetic(fused, images.device, torch.float16, whole=True)
    launch.launches = 0
    torch.testing.assert_close(ready(images), net(images), rtol=1e-2, atol=1e-2)
    assert launch.launches == 1
    ready.channels_last = False
    ready(images.contiguous())
    assert launch.launches == 1, "channels first are left to torch"


@torch.no_grad()
def test_a_kernel_that_is_wrong_is_not_used(
    launch: FormEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(form: Form, blocks: int, arguments: Sequence[Argument]) -> None:
        out = arguments[3]
        assert isinstance(out, torch.Tensor)
        out.fill_(3)

    monkeypatch.setattr(subject, "launch", wrong)
    part = DepthwiseConvolution(_conv(8, 7))
    with pytest.warns(PreparationWarning, match="no custom kernel for depthwise"):
        part.let_run(torch.zeros(1), torch.float16)
    assert not part.by_kernel


def test_it_runs_in_float16_only(launch: FormEmulator) -> None:
    part = DepthwiseConvolution(_conv(8, 7))
    part.let_run(torch.zeros(1), torch.bfloat16)
    assert not part.by_kernel
    assert launch.launches == 0


@pytest.mark.parametrize(
    "part",
    [
        nn.Conv2d(8, 8, 7, padding=3),
        nn.Conv2d(8, 16, 7, padding=3, groups=8),
        nn.Conv2d(8, 8, 7, padding=2, groups=8),
        nn.Conv2d(8, 8, 7, padding=3, groups=8, stride=2),
        nn.Conv2d(8, 8, 3, padding=2, groups=8, dilation=2),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, padding_mode="circular"),
        nn.Conv2d(8, 8, (3, 5), padding=(1, 2), groups=8),
        nn.Conv2d(8, 8, 9, padding=4, groups=8),
        nn.Conv2d(7, 7, 3, padding=1, groups=7),
        nn.Conv1d(8, 8, 3, padding=1, groups=8),
    ],
    ids=["dense", "more channels", "padding", "stride", "dilation", "circular", "oblong", "large",
         "odd", "one axis"],
)  # fmt: skip
def test_other_convolutions_stay(part: nn.Module) -> None:
    assert not suits(part)
    assert suits(_conv(8, 7))
    assert suits(nn.Conv2d(8, 8, 5, padding="same", groups=8))


@torch.no_grad()
def test_images_at_any_address_are_read(launch: FormEmulator) -> None:
    part = DepthwiseConvolution(_conv(8, 3))
    room = torch.randn(2 * 6 * 6 * 8 + 1).half()
    x = room[1:].view(2, 6, 6, 8).permute(0, 3, 1, 2)
    assert x.data_ptr() % 4
    out = depthwise_convolution(x, part.packed, part.bias)
    again = x.clone(memory_format=torch.channels_last)
    assert torch.equal(out, depthwise_convolution(again, part.packed, part.bias))


def test_inputs_that_the_kernel_cannot_read_are_refused(launch: FormEmulator) -> None:
    part, x = DepthwiseConvolution(_conv(8, 3)), _last(2, 8, 4, 4)
    for own, weights, bias in (
        (x.float(), part.packed, part.bias),
        (x.contiguous(), part.packed, part.bias),
        (_last(2, 6, 4, 4), part.packed, part.bias),
        (x, part.packed.float(), part.bias),
        (x, part.packed, part.bias.half()),
    ):
        with pytest.raises(ValueError, match=r"not float16|weights"):
            depthwise_convolution(own, weights, bias)
    assert launch.launches == 0


def test_few_columns_are_left_over() -> None:
    columns = [form_for(96, 7, width).columns for width in (56, 14, 7, 32, 8, 100)]
    assert columns == [7, 7, 7, 8, 8, 8]


@pytest.mark.parametrize("side", subject.SIDES)
@pytest.mark.parametrize("columns", [7, 8])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_without_spills(
    tmp_path: Path, side: int, columns: int, architecture: str
) -> None:
    source = read_source("sween.engine", subject.FILES)
    assert not source_spills(tmp_path, source, Form(48, side, columns).definitions(), architecture)
