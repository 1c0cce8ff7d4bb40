"""The first convolution with the normalisation of its images: the kernel, emulated."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sween.cuda import Argument, read_source
from sween.engine import normalized_convolution as subject
from sween.engine.arithmetic import InArithmetic
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import fuse_layers
from sween.engine.normalized_convolution import NormalizedConvolution, normalized_pixels
from sween.errors import PreparationWarning
from sween.models import Normalize
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import Kernel
from tests.engine.kernels.networks import trained_looking

CPU = torch.device("cpu")


class Emulated:
    """A `Launch` on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.faults, source = 0, read_source("sween.engine", subject.FILES)
        self.kernels = {
            channels: Kernel(
                folder / str(channels),
                compiler(),
                source,
                [f"-DCHANNELS={channels}", "-DENTRY=normalized_pixels"],
                4,
            )
            for channels in (1, 3)
        }

    def __call__(self, channels: int, blocks: int, arguments: Sequence[Argument]) -> None:
        self.faults += self.kernels[channels](blocks, arguments)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def launch(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(subject, "launch", kernels)
    monkeypatch.setattr(subject, "can_compile", lambda _device: True)
    return kernels


def _layers(channels: int = 3, **changes: Any) -> nn.Sequential:
    torch.manual_seed(1)
    constants = {"mean": [0.4, 0.5, 0.6][:channels], "std": [0.2, 0.3, 0.25][:channels]}
    layers = {
        "normalize": Normalize(**constants),
        "conv": nn.Conv2d(channels, 16, 3, padding=1),
        "relu": nn.ReLU(),
    }
    return nn.Sequential(*({**layers, **changes}).values()).eval()


def _first_of(module: nn.Module) -> NormalizedConvolution | None:
    parts = fuse_layers(module).modules()
    found = [part for part in parts if isinstance(part, NormalizedConvolution)]
    assert len(found) <= 1
    return found[0] if found else None


def _known(module: nn.Module) -> NormalizedConvolution:
    part = _first_of(module)
    assert part is not None
    return part


@pytest.mark.parametrize("channels", [1, 3])
@torch.no_grad()
def test_the_kernel(launch: Emulated, channels: int) -> None:
    layers = _layers(channels)
    images = torch.rand(3, channels, 9, 13) * 2 - 0.5  # not a multiple of the threads of a block
    out = normalized_pixels(images, _known(layers).affine)
    assert out.shape == (3, 8, 9, 13)
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out[:, :channels].float(), layers[0](images), rtol=1e-3, atol=1e-3)
    assert not out[:, channels:].any()
    assert launch.faults == 0


OTHERS: dict[str, tuple[nn.Module, bool]] = {
    "normalised": (_layers(), True),
    "grey": (_layers(1), True),
    "not normalised": (_layers(normalize=nn.Identity()), True),
    "one number": (_layers(normalize=Normalize(mean=[0.5], std=[0.25])), True),
    "strided": (_layers(conv=nn.Conv2d(3, 16, 5, stride=2, padding=2, bias=False)), True),
    "no relu": (_layers(relu=nn.Identity()), False),
    "many channels": (nn.Sequential(nn.Conv2d(5, 16, 3), nn.ReLU()).eval(), False),
    "pooled first": (_layers(normalize=nn.AvgPool2d(2)), False),
}


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_layers_are_found(name: str) -> None:
    module, expected = OTHERS[name]
    channels = {"grey": 1, "many channels": 5}.get(name, 3)
    images = torch.rand(2, channels, 12, 12)
    part = _first_of(module)
    assert (part is not None) == expected
    torch.testing.assert_close(fuse_layers(module)(images), module(images))


class Twice(nn.Module):
    """Reads its images twice."""

    def __init__(self, compute: Callable[[nn.Sequential, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers, self.compute = _layers(), compute

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.compute(self.layers, images)


@pytest.mark.parametrize(
    "compute",
    [
        lambda net, x: net(x).mean() + x.mean(),
        lambda net, x: net[2](net[1](y := net[0](x))) + y.sum(),
    ],
    ids=["images", "normalised images"],
)
def test_what_others_read_too_is_left_alone(
    compute: Callable[[nn.Sequential, torch.Tensor], torch.Tensor],
) -> None:
    assert _first_of(Twice(compute).eval()) is None


@torch.no_grad()
def test_a_network_by_the_kernel(launch: Emulated) -> None:
    network = trained_looking("resnet20").eval()
    fused = fuse_layers(fold_batch_norm(network))
    part = next(part for part in fused.modules() if isinstance(part, NormalizedConvolution))
    images = torch.rand(2, 3, 32, 32)
    part.let_run(images, torch.float16)
    assert part.by_kernel
    before = images.clone()
    for whole in (True, False):
        ready = InArithmetic(fused, CPU, torch.float16, whole=whole)
        assert ready.takes_images
        torch.testing.assert_close(ready(images), network(images), rtol=0.05, atol=0.05)
        assert torch.equal(images, before), "other members see them too"
    assert launch.faults == 0


@torch.no_grad()
def test_constants_move_and_are_not_rounded() -> None:
    part = _known(_layers())
    affine = part.affine.clone()
    assert torch.equal(part.half().affine, affine)
    assert part.to("meta").affine.is_meta


@torch.no_grad()
def test_the_operation_refuses_other_images(launch: Emulated) -> None:
    affine = _known(_layers()).affine
    images = torch.rand(2, 3, 8, 8)
    for other in (images[:, :1], images.half(), images.mT, images.double()):
        with pytest.raises(ValueError, match="not"):
            normalized_pixels(other, affine)
    writer = _known(_layers()).reader
    for out in (
        writer.like(images)[:1],
        writer.like(images).float(),
        torch.empty(2, 8, 8, 8).half(),
    ):
        with pytest.raises(ValueError, match="not"):
            writer.write(images, out)  # fmt: skip


@torch.no_grad()
def test_other_arithmetics_run_layer_by_layer(launch: Emulated) -> None:
    images = torch.rand(2, 3, 8, 8)
    for batch, dtype in (
        (images, torch.float32), (images, torch.bfloat16), (images.double(), torch.float16),
        (images[0], torch.float16),
    ):  # fmt: skip
        part = _known(_layers())
        part.let_run(batch, dtype)
        assert not part.by_kernel
        assert not InArithmetic(part, CPU, torch.float32).takes_images


@pytest.mark.parametrize("fault", ["wrong", "raises"])
@torch.no_grad()
def test_a_kernel_that_is_wrong_does_not_run(
    fault: str, launch: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(channels: int, blocks: int, arguments: Sequence[Argument]) -> None:
        if fault == "raises":
            raise RuntimeError("no compiler")
        launch(channels, blocks, arguments)
        out = arguments[2]
        assert isinstance(out, torch.Tensor)
        out[0] += 0.5

    monkeypatch.setattr(subject, "launch", broken)
    part, images = _known(_layers()), torch.rand(2, 3, 16, 16)
    with pytest.warns(PreparationWarning, match="no custom kernel for normalised images"):
        part.let_run(images, torch.float16)
    assert not part.by_kernel
    torch.testing.assert_close(part(images), _layers()(images))


@torch.no_grad()
def test_torchs_compiler_takes_it_as_one_operation(launch: Emulated) -> None:
    part, images = _known(_layers()), torch.rand(2, 3, 16, 16)
    part.let_run(images, torch.float16)
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), part(images))


def test_the_kernel_does_not_spill(tmp_path: Path) -> None:
    source = read_source("sween.engine", subject.FILES)
    assert not source_spills(tmp_path, source, ["-DCHANNELS=3"])
