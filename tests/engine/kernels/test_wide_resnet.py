"""The kernels of CIFAR ResNets with more channels, run on a CPU by the emulator."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sween.engine import Preparation, backends, prepare
from sween.engine.kernels import FusedResNet, Selection, shape_for
from sween.engine.kernels.shape import Shape, WideShape
from sween.engine.kernels.source import read_source
from tests.engine.kernels.conftest import WIDE_SHAPES, compiler, spills
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.networks import convolutions_of, of_whole_numbers, trained_looking


def width_of(emulator: Emulator) -> int:
    assert isinstance(emulator.shape, WideShape)
    return emulator.shape.width


def _images(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("depth", "num_classes"), [(8, 10), (14, 100)])
@torch.no_grad()
def test_integer_weights_give_exact_outputs(
    wide_emulator: Emulator, depth: int, num_classes: int
) -> None:
    model = of_whole_numbers(depth, depth, num_classes, width=width_of(wide_emulator))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(-3, 4, (3, 3, 32, 32), generator=generator).float()
    largest = list[float]()
    for conv in convolutions_of(model):
        conv.register_forward_hook(lambda *call: largest.append(float(call[-1].abs().max())))
    wanted, before = model(images), wide_emulator.faults
    assert 16 < max(largest) < 1024  # float16 holds whole numbers up to 2048
    assert len(torch.unique(wanted)) > 5
    assert torch.equal(FusedResNet(model, wide_emulator)(images), wanted)
    assert wide_emulator.faults == before


@torch.no_grad()
def test_logits_match_float32_up_to_rounding(wide_emulator: Emulator) -> None:
    model, images = trained_looking(f"resnet20x{width_of(wide_emulator)}", seed=3), _images(2)
    wanted, got = model(images), FusedResNet(model, wide_emulator)(images)
    assert float((got - wanted).abs().max()) < 2e-3 * float(wanted.max() - wanted.min())


@torch.no_grad()
def test_outputs_do_not_depend_on_the_rest_of_the_batch(wide_emulator: Emulator) -> None:
    model = of_whole_numbers(8, seed=4, width=width_of(wide_emulator))
    fused, images = FusedResNet(model, wide_emulator), _images(3)
    together = fused(images)
    assert torch.equal(fused(images.flip(0)).flip(0), together)
    assert torch.equal(fused(images[1:2]), together[1:2])
    assert fused(images[:0]).shape == (0, 10)


@pytest.mark.parametrize("at_once", [2, 100])
@torch.no_grad()
def test_selected_images_match_the_full_batch(wide_emulator: Emulator, at_once: int) -> None:
    fused = FusedResNet(of_whole_numbers(8, seed=1, width=width_of(wide_emulator)), wide_emulator)
    images, wanted = _images(5), torch.tensor([False, True, True, False, True])
    before, everything = wide_emulator.faults, fused(images)
    some = fused.selected(images, Selection.of(wanted), at_once=at_once)
    assert torch.equal(some[wanted], everything[wanted])
    assert not some[~wanted].any()
    assert wide_emulator.faults == before


@pytest.mark.slow
@torch.no_grad()
def test_a_missing_barrier_is_detected(tmp_path: Path) -> None:
    shape = WIDE_SHAPES[0]
    source = read_source(shape.files)
    place = source.index("barrier();", source.index("void convolve_blocks"))
    broken = source[:place] + source[place:].replace("barrier();", "", 1)
    emulator = Emulator(tmp_path, compiler(), shape, broken)
    FusedResNet(of_whole_numbers(14, seed=0, width=2), emulator)(_images(1))
    assert emulator.faults > 0


def test_members_are_prepared_with_the_kernels(
    wide_emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = trained_looking(f"resnet20x{width_of(wide_emulator)}", seed=5), _images(2)
    asked = list[Shape]()

    def launcher(device: torch.device, shape: Shape) -> Emulator:
        asked.append(shape)
        return wide_emulator

    monkeypatch.setattr(backends, "supports", lambda device, shape=None: True)
    monkeypatch.setattr(backends, "launcher", launcher)
    prepared = prepare.prepare(model, Preparation("float16", compile=True), images)
    assert prepared.arithmetic == "float16+fused"
    assert asked == [wide_emulator.shape]
    assert torch.equal(prepared.run(images), FusedResNet(model, wide_emulator)(images))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_a_gpu_with_less_shared_memory_compiles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def supports(device: torch.device, shape: Shape | None = None) -> bool:
        return not isinstance(shape, WideShape)

    monkeypatch.setattr(backends, "supports", supports)
    monkeypatch.setattr(backends, "compiled", lambda ready, images, search=True: ready)
    model = trained_looking("resnet20x2", seed=5)
    prepared = prepare.prepare(model, Preparation("float16", compile=True), _images(2))
    assert "fused" not in prepared.arithmetic


def test_blocks_fit_an_h100() -> None:
    """232,448 bytes of shared memory; an A100 has 166,912, enough for twice the channels."""
    assert max(WideShape(width=2).shared_bytes(stage) for stage in (1, 2, 3)) == 147_968
    assert max(WideShape(width=3).shared_bytes(stage) for stage in (1, 2, 3)) == 221_952


def test_the_shape_follows_the_width() -> None:
    shapes = [shape_for(_network(arch)) for arch in ("resnet20", "resnet26x2", "resnet32x3")]
    assert shapes == [Shape(), WideShape(width=2), WideShape(width=3)]


def _network(arch: str) -> nn.Module:
    return trained_looking(arch)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", WIDE_SHAPES, ids=str)
def test_the_source_compiles_without_spills(tmp_path: Path, stage: int, shape: Shape) -> None:
    assert not spills(tmp_path, shape, stage)
