"""Quantised networks: their kernels, run on a CPU by the emulator, against the exact simulation."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine.kernels import (
    FusedQuantizedResNet,
    QuantizedResNet,
    Selection,
    WideQuantizedResNet,
)
from sween.engine.kernels.quantized import LARGEST_SUM, LARGEST_WIDE_SUM, STEPS, IntegerConvolution
from sween.engine.kernels.shape import IntegerShape, Shape, WideIntegerShape
from sween.models.activation_ranges import measure_ranges
from sween.models.cifar_resnet import BasicBlock, CifarResNet
from sween.models.normalize import Normalize
from tests.engine.kernels.conftest import INTEGER_SHAPES, WIDE_INTEGER_SHAPES, spills
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.networks import default_dtype, with_statistics

CPU = torch.device("cpu")


def _images(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, 32, 32, generator=generator)
    return images + 0.5 * torch.randn(images.shape, generator=generator)


def _network(depth: int, num_classes: int = 10, seed: int = 0, *, width: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    network = CifarResNet(depth, num_classes, width=width)
    module = nn.Sequential(Normalize([0.4, 0.5, 0.45], [0.2, 0.3, 0.25]), network)
    with_statistics(module, seed)
    measure_ranges(module, [_images(8, seed=9)])
    return module


def _resnet(module: nn.Sequential) -> CifarResNet:
    network = module[1]
    assert isinstance(network, CifarResNet)
    return network


def _with_option_a(module: nn.Sequential) -> nn.Sequential:
    """Shortcuts that drop pixels and pad channels, as `rebuild_resnet.py` writes them."""
    for stage in (_resnet(module).stage2, _resnet(module).stage3):
        block = stage[0]
        assert isinstance(block, BasicBlock)
        assert isinstance(block.shortcut, nn.Sequential)
        conv, norm = block.shortcut
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        into = conv.in_channels
        conv.weight.data = torch.eye(into).repeat(2, 1)[..., None, None]
        conv.weight.data[into:] = 0
        norm.reset_running_stats()
        norm.weight.data.fill_(1)
        norm.bias.data.zero_()
    measure_ranges(module, [_images(8, seed=9)])
    return module


@pytest.mark.parametrize(("depth", "num_classes"), [(8, 10), (14, 100)])
@torch.no_grad()
def test_kernels_give_the_bits_of_the_simulation(
    integer_emulator: Emulator, depth: int, num_classes: int
) -> None:
    network = QuantizedResNet(_network(depth, num_classes, seed=depth))
    images, before = _images(3), integer_emulator.faults
    wanted = network(images)
    assert len(torch.unique(wanted)) > 5
    assert torch.equal(FusedQuantizedResNet(network, integer_emulator, CPU)(images), wanted)
    assert integer_emulator.faults == before  # no races


@torch.no_grad()
def test_shortcuts_that_pad_channels(integer_emulator: Emulator) -> None:
    network = QuantizedResNet(_with_option_a(_network(8)))
    images = _images(2)
    assert torch.equal(
        FusedQuantizedResNet(network, integer_emulator, CPU)(images), network(images)
    )


@torch.no_grad()
def test_activations_beyond_their_ranges_saturate(integer_emulator: Emulator) -> None:
    module = _network(8)
    ranges = _resnet(module).activation_ranges
    assert ranges is not None
    ranges.mul_(0.3)
    network, images = QuantizedResNet(module), _images(2)
    assert not torch.equal(network(images), QuantizedResNet(_network(8))(images))
    assert torch.equal(
        FusedQuantizedResNet(network, integer_emulator, CPU)(images), network(images)
    )


@torch.no_grad()
def test_selected_images_match_the_full_batch(integer_emulator: Emulator) -> None:
    wanted = torch.tensor([False, True, True, False, True])
    network, images = QuantizedResNet(_network(8)), _images(5)
    fused = FusedQuantizedResNet(network, integer_emulator, CPU)
    everything = fused(images)
    some = fused.selected(images, Selection.of(wanted), at_once=2)
    assert torch.equal(some, everything * wanted[:, None])
    assert torch.equal(fused(images[3:4]), everything[3:4])


@torch.no_grad()
def test_kernels_of_wide_networks_give_the_bits_of_the_simulation(
    wide_integer_emulator: Emulator,
) -> None:
    assert isinstance(wide_integer_emulator.shape, WideIntegerShape)
    network = QuantizedResNet(_network(14, 13, width=wide_integer_emulator.shape.width))
    images, before = _images(3), wide_integer_emulator.faults
    wanted = network(images)
    assert len(torch.unique(wanted)) > 5
    fused = WideQuantizedResNet(network, wide_integer_emulator, CPU)
    assert torch.equal(fused(images), wanted)
    assert torch.equal(fused(images[1:2]), wanted[1:2])
    chosen = torch.tensor([True, False, True])
    some = fused.selected(images, Selection.of(chosen), at_once=2)
    assert torch.equal(some, wanted * chosen[:, None])
    assert wide_integer_emulator.faults == before  # no races


@pytest.mark.parametrize("width", [1, 4])
@torch.no_grad()
def test_the_simulation_is_close_to_float32(width: int) -> None:
    module, images = _network(20, seed=1, width=width), _images(8, seed=9)
    wanted, got = module(images), QuantizedResNet(module)(images)
    assert float((got - wanted).abs().max()) < 0.03 * float(wanted.max() - wanted.min())


@torch.no_grad()
def test_the_default_dtype_does_not_matter() -> None:
    module, images = _network(8), _images(2)
    wanted = QuantizedResNet(module)(images)
    with default_dtype(torch.float64):
        assert torch.equal(QuantizedResNet(module)(images), wanted)


@pytest.mark.parametrize(("channels", "largest_sum"), [(64, LARGEST_SUM), (256, LARGEST_WIDE_SUM)])
@torch.no_grad()
def test_a_convolution_is_that_of_its_integers(channels: int, largest_sum: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 16, 3, padding=1).double()
    assert conv.bias is not None
    conv.weight[0], conv.bias[0] = 0, 0  # a dead channel
    conv.weight[1] *= 1e-9
    conv.bias[1] = 5  # whose sums would not fit with the weights' own scale
    conv.weight[2] = 1  # whose sums are as large as they can be
    own = IntegerConvolution.of(conv, 3.0, largest_sum=largest_sum)
    inputs = torch.randint(0, STEPS + 1, (2, channels, 8, 8))
    inputs[1] = STEPS
    sums = functional.conv2d(
        inputs.double(), own.weight.double(), own.bias.double(), padding=1
    ).long()
    assert torch.equal(own(inputs.float()), sums.float() * own.scale[:, None, None])
    assert 0.9 * largest_sum < int(sums.abs().max()) < largest_sum
    real = functional.conv2d(inputs.double() * 3 / STEPS, conv.weight, conv.bias, padding=1)
    scales = real.abs().amax((0, 2, 3)).clamp(min=1e-9)
    errors = (own(inputs.float()) - real).abs().amax((0, 2, 3)) / scales
    assert float(errors.max()) < 0.02


def test_blocks_fit_the_gpu() -> None:
    assert [IntegerShape().shared_bytes(stage) for stage in (1, 2, 3)] == [69_760, 37_120, 41_984]
    wide = [WideIntegerShape(width=4).shared_bytes(stage) for stage in (1, 2, 3)]
    assert wide == [147_968, 82_944, 102_400]  # of 227 kB, one block in stage 1, then two


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", [*INTEGER_SHAPES, *WIDE_INTEGER_SHAPES], ids=str)
def test_the_source_compiles_without_spills(tmp_path: Path, stage: int, shape: Shape) -> None:
    assert not spills(tmp_path, shape, stage)
