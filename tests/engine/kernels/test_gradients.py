"""The kernels of gradients, run on a CPU by the emulator, against autograd."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sween.attack import gradients
from sween.attack.gradients import FastProbabilities, probabilities_of
from sween.engine.kernels import FusedGradients, FusedResNet, GradientShape, MaskShape
from sween.ensemble import WeightedEnsemble
from sween.smoothing.smoothed_logits import PlainProbabilities
from tests.engine.kernels.conftest import compiler, spills
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.networks import of_whole_numbers, trained_looking

SIZES = [(2, 2), pytest.param((4, 4), marks=pytest.mark.slow)]


@pytest.fixture(scope="session", params=SIZES, ids=str)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Emulator, Emulator]:
    """Forward and backward."""
    shapes = MaskShape(*request.param), GradientShape(*request.param)
    forward, backward = (
        Emulator(tmp_path_factory.mktemp("emulator"), compiler(), shape) for shape in shapes
    )
    return forward, backward


def _pulled(module: nn.Module, images: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    own = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(module(own), own, vector)
    return gradient


@pytest.mark.parametrize(("depth", "num_classes"), [(8, 10), (14, 3)])
def test_gradients_of_whole_numbers_are_exact(
    both: tuple[Emulator, Emulator], depth: int, num_classes: int
) -> None:
    module = of_whole_numbers(depth, seed=depth, num_classes=num_classes).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(-3, 4, (3, 3, 32, 32), generator=generator).float()
    vector = torch.randint(-2, 3, (3, num_classes), generator=generator).float()
    vector[:, 0] = 16  # the largest, so that no scale rounds
    vector[1] = 0
    wanted = _pulled(module.double(), images.double(), vector.double()).float()
    assert len(torch.unique(wanted)) > 10
    fused = FusedGradients(module.float(), *both)
    assert torch.equal(fused.pull(images, lambda logits: vector), wanted)
    assert [emulator.faults for emulator in both] == [0, 0]  # no races


def test_gradients_of_any_size_keep_their_precision(both: tuple[Emulator, Emulator]) -> None:
    module = trained_looking("resnet20").requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 3, 32, 32, generator=generator)
    sizes = torch.tensor([1.0, 1e-7, 1e5])[:, None]
    vector = sizes * torch.randn(3, 10, generator=generator)
    ours = FusedGradients(module, *both).pull(images, lambda logits: vector).flatten(1)
    theirs = _pulled(module, images, vector).flatten(1)
    assert float(torch.cosine_similarity(ours, theirs).min()) > 0.99
    assert torch.allclose(ours.norm(dim=1), theirs.norm(dim=1), rtol=0.05)


@pytest.mark.slow
@torch.no_grad()
def test_logits_are_those_of_the_certified_network(
    both: tuple[Emulator, Emulator], emulator: Emulator
) -> None:
    module, images = trained_looking("resnet20", seed=3), torch.rand(3, 3, 32, 32)
    assert torch.equal(FusedGradients(module, *both)(images), FusedResNet(module, emulator)(images))


@pytest.mark.slow
def test_attacks_use_the_kernels(
    both: tuple[Emulator, Emulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulators = {MaskShape: both[0], GradientShape: both[1]}
    monkeypatch.setattr(gradients, "supports", lambda device: True)
    monkeypatch.setattr(gradients, "launcher", lambda device, shape: emulators[type(shape)])
    monkeypatch.setattr(gradients, "ROWS_TRIED", 4)
    monkeypatch.setattr(gradients, "KERNEL_ROWS", 3)
    members = [trained_looking("resnet20", seed=seed) for seed in range(2)]
    ensemble = WeightedEnsemble(members, (0.7, 0.3)).eval().requires_grad_(False)

    class Engine:
        compiled = True
        probabilities = staticmethod(PlainProbabilities(ensemble))

    image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    fast = probabilities_of(ensemble, Engine(), image)  # type: ignore[arg-type]
    assert isinstance(fast, FastProbabilities)
    assert fast.name == "fused"


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", [MaskShape(), GradientShape()], ids=str)
def test_the_source_compiles_without_spills(
    tmp_path: Path, stage: int, shape: MaskShape | GradientShape
) -> None:
    assert not spills(tmp_path, shape, stage)
