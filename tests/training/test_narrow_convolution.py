"""Convolutions of few channels: the kernels, run on a CPU by the emulator, against torch's own."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument, read_source
from sween.errors import PreparationWarning
from sween.models import create_model
from sween.training import narrow_convolution as narrow
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import Kernel

KINDS = [("convolution", 16), ("weight_gradient", 16), ("weight_gradient", 32)]
CPU = torch.device("cpu")


class Emulated:
    """A `Launch` on the CPU with few blocks, so that each has several images."""

    def __init__(self, folder: Path) -> None:
        self.faults, source = 0, read_source("sween.training", narrow.FILES)
        self.kernels = {
            (name, channels): Kernel(
                folder / f"{name}{channels}",
                compiler(),
                source,
                [*narrow.definitions(name, channels), f"-DENTRY={name}"],
                narrow.shared_bytes(name, channels),
            )
            for name, channels in KINDS
        }

    def blocks(self, kernel: str, device: torch.device) -> int:
        return 2

    def __call__(
        self, kernel: str, channels: int, blocks: int, arguments: Sequence[Argument]
    ) -> None:
        self.faults += self.kernels[kernel, channels](blocks, arguments)


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def emulated(launch: Emulated, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(narrow, "launch", launch)
    monkeypatch.setattr(narrow, "can_compile", lambda device, shared_bytes: True)
    return launch


@pytest.mark.parametrize("channels", [16, 32])
def test_whole_numbers_come_out_exactly(emulated: Emulated, channels: int) -> None:
    narrow.check_kernels(channels, CPU)
    assert emulated.faults == 0  # no races


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("channels", [16, 32])
def test_outputs_and_gradients_are_those_of_torch(
    emulated: Emulated, channels: int, count: int
) -> None:
    size, generator = narrow.SIZES[channels], torch.Generator().manual_seed(count)
    shape = (count, channels, size, size)
    images, vector = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3, generator=generator)
    found = []
    for convolve in (narrow.narrow_convolution, _plain):
        own = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        weights = weight.clone().requires_grad_()
        outputs = convolve(own, weights)
        found.append((outputs.detach(), *torch.autograd.grad(outputs, (own, weights), vector)))
    for ours, theirs in zip(*found, strict=True):
        scale = float(theirs.abs().max())
        assert ours.dtype == theirs.dtype
        assert float((ours - theirs).abs().max()) < 0.02 * scale


def _plain(images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(images, weight.bfloat16(), padding=1)


def test_the_layers_of_a_network_use_them(emulated: Emulated) -> None:
    model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    names = [*model.state_dict()]
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def gradients(*, brain: bool) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=brain):
            loss = model(images).float().square().sum()
        found = torch.autograd.grad(loss, [*model.parameters()])
        return torch.cat([each.flatten() for each in found])

    exact, plain, without = gradients(brain=False), gradients(brain=True), model(images)
    assert narrow.use_narrow_convolutions(model, CPU) == 6 + 5
    assert narrow.use_narrow_convolutions(model, CPU) == 0  # once
    ours = gradients(brain=True)
    assert not torch.equal(ours, plain)
    assert float((ours - exact).norm()) < 1.2 * float((plain - exact).norm())
    assert torch.equal(model(images), without)  # float32 is left to torch
    assert [*model.state_dict()] == names


def test_kernels_that_compute_something_else_are_not_used(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty:
        blocks = emulated.blocks

        def __call__(
            self, kernel: str, channels: int, blocks: int, arguments: Sequence[Argument]
        ) -> None:
            out = arguments[3 if kernel == "convolution" else 2]
            assert isinstance(out, torch.Tensor)
            out.fill_(7)

    monkeypatch.setattr(narrow, "launch", Faulty())
    layer = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False))
    with pytest.warns(PreparationWarning, match="something else"):
        assert narrow.use_narrow_convolutions(layer, CPU) == 0
    assert type(layer[0]) is nn.Conv2d


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Conv2d(16, 16, 3, padding=1, bias=False, stride=2),
        nn.Conv2d(16, 16, 3, padding=1, bias=False, groups=2),
        nn.Conv2d(16, 16, 3, padding=1, bias=False, padding_mode="reflect"),
        nn.Conv2d(16, 16, 1, bias=False),
        nn.Linear(16, 16),
    ],
    ids=str,
)
def test_other_layers_stay(emulated: Emulated, layer: nn.Module) -> None:
    kind = type(layer)
    assert narrow.use_narrow_convolutions(nn.Sequential(layer), CPU) == 0
    assert type(layer) is kind


def test_without_a_gpu_nothing_changes() -> None:
    model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    assert narrow.use_narrow_convolutions(model, CPU) == 0


@pytest.mark.parametrize(("kernel", "channels"), KINDS)
def test_the_source_compiles_without_spills(tmp_path: Path, kernel: str, channels: int) -> None:
    source = read_source("sween.training", narrow.FILES)
    assert not source_spills(tmp_path, source, narrow.definitions(kernel, channels))
