"""The first layer of networks that cut their images into patches."""

import copy
import importlib
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from sween.engine import image_patches as subject
from sween.engine.after_images import split
from sween.engine.arithmetic import InArithmetic
from sween.engine.depthwise_convolution import DepthwiseConvolution
from sween.engine.fuse_layers import fuse_layers, is_all_fused
from sween.engine.image_patches import ImagePatches, PatchProduct
from sween.engine.layer_norm import KernelLayerNorm
from sween.engine.patch_convolution import use_patches
from sween.errors import PreparationWarning

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Net(nn.Module):
    """Patches, means and a linear layer, of normalised images or not."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, *, normalised: bool = True, size: int = 4, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1))
        self.normalised = normalised
        self.conv = nn.Conv2d(3, 8, size, size, **options)  # type: ignore[arg-type]
        self.linear = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalised:
            x = (x - self.mean) / self.std
        out: torch.Tensor = self.linear(self.conv(x).mean(dim=(2, 3)))
        return out


def _product(part: ImagePatches) -> PatchProduct:
    return PatchProduct(part.conv, part.mean, part.std)


def _patches_of(module: nn.Module) -> ImagePatches:
    (part,) = (own for own in module.modules() if isinstance(own, ImagePatches))
    return part


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(16, 12), (18, 15)], ids=["even", "left over"])
@torch.no_grad()
def test_outputs_stay_the_same(normalised: bool, bias: bool, size: tuple[int, int]) -> None:
    net = Net(normalised=normalised, bias=bias).eval()
    images, fused = torch.randn(3, 3, *size), fuse_layers(net)
    part = _patches_of(fused)
    torch.testing.assert_close(fused(images), net(images))
    part.product = _product(part)
    torch.testing.assert_close(fused(images), net(images), rtol=1e-4, atol=1e-5)
    found = split(fused)
    assert found is not None
    first, rest = found
    place = first.like(images)
    first.write(images, place)
    torch.testing.assert_close(rest(place), net(images), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_in_float16_the_images_are_read_as_they_are() -> None:
    net, images = Net().eval(), torch.rand(4, 3, 16, 16)
    fused = fuse_layers(net)
    part = _patches_of(fused)
    part.product = _product(part)
    ready = InArithmetic(fused, images.device, torch.float16, whole=True)
    assert ready.takes_images
    torch.testing.assert_close(ready(images), net(images), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "net",
    [Net(size=4, padding=1), Net(size=4, dilation=2), Net(size=1)],
    ids=["padding", "dilation", "single pixels"],
)
def test_other_convolutions_stay(net: Net) -> None:
    fused = fuse_layers(net.eval())
    assert not any(isinstance(part, ImagePatches) for part in fused.modules())


class _OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("wrong", [False, True])
@torch.no_grad()
def test_it_is_compared_with_the_layers(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    part = ImagePatches(Net().conv, None, None)
    images = torch.rand(3, 3, 8, 8).as_subclass(_OnGpu)
    if wrong:
        right = PatchProduct.forward
        monkeypatch.setattr(PatchProduct, "forward", lambda *a: 1.05 * right(*a))
        with pytest.warns(PreparationWarning, match="patches of images"):
            part.let_run(images, torch.float16)
    else:
        part.let_run(images, torch.float16)
    assert part.by_kernel != wrong
    other = ImagePatches(Net().conv, None, None)
    other.let_run(images, torch.float32)
    other.let_run(torch.rand(3, 3, 8, 8), torch.float16)
    assert not other.by_kernel


@pytest.mark.parametrize("name", ["vit_small", "convnext_tiny"])
@torch.no_grad()
def test_transformers_and_convnext_need_no_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    strangers = importlib.import_module("strangers")
    torch.manual_seed(0)
    options = {"image_shape": (3, 32, 32)} if name == "vit_small" else {}
    network, images = getattr(strangers, name)(10, **options).eval(), torch.rand(2, 3, 32, 32)
    fused = fuse_layers(network)
    assert isinstance(fused, fx.GraphModule)
    use_patches(fused)
    assert not is_all_fused(fused), "kernels do not run here"
    torch.testing.assert_close(fused(images), network(images), rtol=1e-4, atol=1e-4)
    for part in fused.modules():
        if isinstance(part, ImagePatches):
            part.product = _product(part)
        elif isinstance(part, DepthwiseConvolution | KernelLayerNorm):
            part.by_kernel = True
    assert is_all_fused(fused)


def test_the_compiler_reads_it() -> None:
    fused = copy.deepcopy(fuse_layers(Net().eval()))
    part = _patches_of(fused)
    part.product = _product(part)
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(images), fused(images))
    assert subject.IMAGES_COMPARED > 1
