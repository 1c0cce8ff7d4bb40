"""The kernels of the CIFAR ResNets, run on a CPU by the emulator."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from sween.cuda import Argument
from sween.engine import Preparation, backends, prepare
from sween.engine.kernels import FusedResNet, is_cifar_resnet, supports
from sween.engine.kernels.cifar_resnet import Launch
from sween.engine.kernels.shape import Shape
from sween.engine.kernels.source import read_source
from sween.errors import PreparationWarning
from sween.models import cifar_resnet, create_model
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize
from tests.engine.kernels.conftest import SHAPES, compiler, spills
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.networks import (
    convolutions_of,
    default_dtype,
    of_whole_numbers,
    trained_looking,
)


@pytest.mark.parametrize(("depth", "num_classes"), [(8, 10), (14, 100), (8, 2)])
@torch.no_grad()
def test_integer_weights_give_exact_outputs(
    any_emulator: Emulator, depth: int, num_classes: int
) -> None:
    model = of_whole_numbers(depth, seed=depth, num_classes=num_classes)
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(-3, 4, (5, 3, 32, 32), generator=generator).float()
    largest = []
    for conv in convolutions_of(model):
        conv.register_forward_hook(lambda *call: largest.append(float(call[-1].abs().max())))
    wanted = model(images)
    assert 16 < max(largest) < 1024  # float16 holds whole numbers up to 2048
    assert len(torch.unique(wanted)) > 5
    assert torch.equal(FusedResNet(model, any_emulator)(images), wanted)


@torch.no_grad()
def test_threads_never_race_for_shared_memory(any_emulator: Emulator) -> None:
    """In any order of execution: between barriers a thread's writes are private to it."""
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = any_emulator.faults
    FusedResNet(of_whole_numbers(14, seed=0), any_emulator)(images)
    assert any_emulator.faults == before


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
@torch.no_grad()
def test_a_missing_barrier_is_detected(tmp_path: Path, number: int) -> None:
    source = read_source()
    stages = source.index("KERNEL(256")
    places = [found.start() for found in re.finditer("barrier\\(\\);", source[stages:])]
    place = stages + places[2 * number + 1]
    broken = source[:place] + source[place:].replace("barrier();", "", 1)
    emulator = Emulator(tmp_path, compiler(), SHAPES[0], broken)
    FusedResNet(of_whole_numbers(14, seed=0), emulator)(torch.rand(1, 3, 32, 32))
    assert emulator.faults > 0


@pytest.mark.parametrize("arch", ["resnet20", "resnet26"])
@torch.no_grad()
def test_logits_match_float32_up_to_rounding(emulator: Emulator, arch: str) -> None:
    model = trained_looking(arch, seed=3)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    wanted, got = model(images), FusedResNet(model, emulator)(images)
    assert float((got - wanted).abs().max()) < 2e-3 * float(wanted.max() - wanted.min())


@torch.no_grad()
def test_outputs_do_not_depend_on_the_rest_of_the_batch(emulator: Emulator) -> None:
    fused = FusedResNet(of_whole_numbers(8, seed=4), emulator)
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    together = fused(images)
    assert torch.equal(fused(images.flip(0)).flip(0), together)
    for i in range(5):
        assert torch.equal(fused(images[i : i + 1]), together[i : i + 1])
    assert fused(images[:0]).shape == (0, 10)


@pytest.mark.usefixtures("with_kernels")
def test_members_are_prepared_with_the_kernels(emulator: Emulator) -> None:
    model, images = trained_looking("resnet20", seed=5), torch.rand(2, 3, 32, 32)
    prepared = prepare.prepare(model, Preparation("float16", compile=True), images)
    assert prepared.compiled
    assert prepared.arithmetic == "float16+fused"
    assert torch.equal(prepared.run(images), FusedResNet(model, emulator)(images))
    plain = prepare.prepare(model, Preparation("float16", compile=False), images)
    assert plain.arithmetic == "float16"


class _Nonsense:
    """Writes sevens."""

    shape = SHAPES[0]

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        for value in arguments[7:]:
            if isinstance(value, torch.Tensor):
                value.fill_(7)


@pytest.mark.parametrize("fault", ["not built", "wrong", "wrong selection"])
def test_a_member_whose_kernels_are_faulty_is_compiled(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def launcher(device: torch.device, shape: Shape) -> Launch:
        if fault == "not built":
            raise RuntimeError("no compiler here")
        return emulator if fault == "wrong selection" else _Nonsense()

    right: Callable[..., torch.Tensor] = FusedResNet.selected
    if fault == "wrong selection":
        monkeypatch.setattr(FusedResNet, "selected", lambda *a, **k: right(*a, **k).roll(1, 0))
    monkeypatch.setattr(backends, "supports", lambda device, shape=None: True)
    monkeypatch.setattr(backends, "launcher", launcher)
    monkeypatch.setattr(backends, "compiled", lambda module, images: module)
    model, images = trained_looking("resnet20", seed=5), torch.rand(2, 3, 32, 32)
    with pytest.warns(PreparationWarning, match="cannot be run by custom kernels, "):
        prepared = prepare.prepare(model, Preparation("float16", compile=True), images)
    assert prepared.arithmetic == "float16+compiled"


def test_blocks_fit_the_gpu() -> None:
    """Shared memory of a block on an A100, an RTX 4090 and an H100, in bytes."""
    assert [Shape().shared_bytes(stage) for stage in (1, 2, 3)] == [73_984, 41_472, 51_200]


def test_only_registered_networks_are_accepted() -> None:
    model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    assert is_cifar_resnet(model, (3, 32, 32))
    assert not is_cifar_resnet(model, (3, 64, 64))
    wide = create_model("resnet20x2", num_classes=10, image_shape=(3, 32, 32))
    assert not is_cifar_resnet(wide, (3, 32, 32))
    assert is_cifar_resnet(wide, (3, 32, 32), widths=(1, 2))
    assert not is_cifar_resnet(nn.Sequential(*model.children(), nn.Softmax(1)), (3, 32, 32))
    assert not supports(torch.device("cpu"))

    class Subclass(CifarResNet):
        pass

    plain, grey = Normalize([0, 0, 0], [1, 1, 1]), Normalize([0.5], [0.2])
    dilated, hooked = CifarResNet(8, 10), CifarResNet(8, 10)
    dilated.conv1 = nn.Conv2d(3, 16, 3, padding=2, dilation=2, bias=False)
    hooked.register_forward_hook(lambda *call: -call[-1])

    class ClampedNorm(nn.BatchNorm2d):
        pass

    class Conv2d(nn.Conv2d):  # by another class of that name
        pass

    class BasicBlock(cifar_resnet.BasicBlock):
        pass

    others = [CifarResNet(8, 10).eval() for _ in range(6)]
    others[0].bn1 = ClampedNorm(16)
    others[1].conv1 = Conv2d(3, 16, 3, padding=1, bias=False)
    others[2].stage3[0].__class__ = BasicBlock
    others[3].bn1 = nn.BatchNorm2d(16, track_running_stats=False)
    others[4].bn1 = nn.BatchNorm2d(16, affine=False)
    others[5].bn1.train()
    for network in others[:5]:
        network.eval()
    assert is_cifar_resnet(nn.Sequential(plain, CifarResNet(8, 10)), (3, 32, 32))
    for normalize, network in (
        (plain, Subclass(8, 10)),
        (grey, CifarResNet(8, 10)),
        (plain, dilated),
        *((plain, other) for other in others),
        (plain, hooked),
    ):
        assert not is_cifar_resnet(nn.Sequential(normalize, network), (3, 32, 32))


def test_inputs_of_another_type_or_size_are_refused() -> None:
    fused = FusedResNet(trained_looking("resnet20", seed=0), _Nonsense())
    with pytest.raises(ValueError, match="float32"):
        fused(torch.zeros(1, 3, 32, 32, dtype=torch.float64))
    with pytest.raises(ValueError, match="32, 32"):
        fused(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_without_spills(
    tmp_path: Path, stage: int, shape: Shape, architecture: str
) -> None:
    assert not spills(tmp_path, shape, stage, architecture)


@torch.no_grad()
def test_the_default_dtype_does_not_matter(emulator: Emulator) -> None:
    fused, images = FusedResNet(trained_looking("resnet20", 3), emulator), torch.rand(2, 3, 32, 32)
    wanted = fused(images)
    with default_dtype(torch.float64):
        assert torch.equal(fused(images), wanted)
