"""Networks that need no compiler, and those that are captured behind their first kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine import after_images, normalized_convolution, stem
from sween.engine.after_images import AfterImages, split
from sween.engine.arithmetic import InArithmetic
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import KERNELS, fuse_layers, is_all_fused
from sween.engine.image_patches import ImagePatches, PatchProduct
from sween.engine.normalized_convolution import CHANNELS, NormalizedConvolution
from sween.models import create_model
from tests.engine.kernels.networks import trained_looking


class Head(nn.Module):
    """A convolution and what follows it."""

    def __init__(self, pool: Callable[[torch.Tensor], torch.Tensor] | nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.pool, self.linear = nn.Conv2d(3, 16, 3), pool, nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.pool(functional.relu(self.conv(x))).flatten(1))
        return out


MEANS: dict[str, Any] = {
    "method": lambda x: x.mean(dim=(2, 3)),
    "function": lambda x: torch.mean(x, dim=[-1, -2], keepdim=True),
    "pool": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "module": nn.AdaptiveAvgPool2d(1),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_need_no_compiler(name: str) -> None:
    assert is_all_fused(_standing_for_kernels(fuse_layers(Head(MEANS[name]).eval())))


class Preactivated(nn.Module):
    """A block of a wide ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.a, self.b = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.relu, self.linear = nn.BatchNorm2d(16), nn.ReLU(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        x = self.b(self.relu(self.a(x))) + x
        out: torch.Tensor = self.linear(self.relu(self.norm(x)).mean(dim=(2, 3)))
        return out


def _standing_for_kernels(fused: nn.Module) -> nn.Module:
    """As if all kernels ran."""
    for part in fused.modules():
        if isinstance(part, NormalizedConvolution):
            part.padded = part.first
        elif isinstance(part, ImagePatches):
            part.product = PatchProduct(part.conv, part.mean, part.std)
        elif isinstance(part, stem.Stem):
            part.size = (64, 64)
        elif isinstance(part, KERNELS):
            part.by_kernel = True  # type: ignore[misc]
    return fused


@pytest.mark.parametrize("name", ["resnet20x2", "imagenet-resnet50", "preactivated"])
def test_networks_that_need_no_compiler(name: str) -> None:
    module = Preactivated() if name == "preactivated" else create_model(
        name, num_classes=10, image_shape=(3, 64, 64)
    )  # fmt: skip
    fused = fuse_layers(fold_batch_norm(module.eval()))
    assert not is_all_fused(fused), "kernels do not run here"
    assert is_all_fused(_standing_for_kernels(fused))


@pytest.mark.parametrize(
    "module",
    [
        Head(lambda x: torch.sigmoid(x).mean(dim=(2, 3))),
        Head(nn.AdaptiveMaxPool2d(1)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.GELU()),
        nn.Flatten(),
    ],
    ids=["sigmoid", "maximum", "bias of a plain convolution", "gelu", "not traced"],
)
def test_networks_that_the_compiler_makes_faster(module: nn.Module) -> None:
    assert not is_all_fused(_standing_for_kernels(fuse_layers(module.eval())))


class Written:
    """Stands for a kernel's writer."""

    def __init__(self, part: NormalizedConvolution) -> None:
        self.part, self.places = part, list[int]()

    def like(self, images: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(images), CHANNELS, *images.shape[2:])

    def write(self, images: torch.Tensor, out: torch.Tensor) -> None:
        self.places.append(out.data_ptr())
        assert self.part.mean is not None
        assert self.part.std is not None
        out[:, :3] = (images - self.part.mean) / self.part.std


class Graph:
    """Stands for a CUDA graph."""

    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor) -> None:
        self.run, self.inputs = run, [example.clone()]

    def writing(self) -> torch.no_grad:
        return torch.no_grad()

    def replay(self) -> torch.Tensor:
        return self.run(self.inputs[0])


@torch.no_grad()
def test_the_first_kernel_writes_to_the_graphs_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_images, "CudaGraph", Graph)
    network = trained_looking("resnet20").eval()
    fused = fuse_layers(fold_batch_norm(network))
    assert split(fused) is None, "no kernel runs"
    part = next(part for part in fused.modules() if isinstance(part, NormalizedConvolution))
    part.padded = type(part.first)(normalized_convolution._padded(part.first.conv))
    found = split(fused)
    assert found is not None
    writer = Written(part)
    images = torch.rand(4, 3, 32, 32)
    run = AfterImages(writer, found[1], images)
    for _ in range(2):
        images = torch.rand(4, 3, 32, 32)
        torch.testing.assert_close(run(images), network(images), rtol=1e-4, atol=1e-4)
    assert isinstance(run.graph, Graph)
    assert set(writer.places[1:]) == {run.graph.inputs[0].data_ptr()}
    with pytest.raises(ValueError, match="captured for images of shape"):
        run(images[:2])
    part.padded = None  # the network itself was not changed
    torch.testing.assert_close(fused(images), network(images), rtol=1e-4, atol=1e-4)


def test_a_stem_is_all_that_reads_the_images() -> None:
    network = create_model("imagenet-resnet18", num_classes=10, image_shape=(3, 64, 64)).eval()
    fused = _standing_for_kernels(fuse_layers(fold_batch_norm(network)))
    found = split(fused)
    assert found is not None
    writer, rest = found
    assert isinstance(writer, stem.StemWriter)
    with torch.no_grad():
        assert rest(torch.rand(2, 64, 16, 16)).shape == (2, 10)
    assert not any(isinstance(part, stem.Stem) for part in rest.modules())


def test_on_a_cpu_nothing_is_captured() -> None:
    ready = InArithmetic(nn.Flatten(), torch.device("cpu"), torch.float32)
    assert after_images.captured_after_images(ready, torch.rand(1, 3, 8, 8)) is None
