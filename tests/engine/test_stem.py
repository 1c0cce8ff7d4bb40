"""The first layers of a ResNet as one operation: the kernel, emulated, and what it replaces."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sween.cuda import Argument, read_source
from sween.engine import stem as stems
from sween.engine.arithmetic import InArithmetic
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_first_layers import NAME
from sween.engine.fuse_layers import fuse_layers
from sween.engine.stem import Stem, shared_bytes, stem
from sween.errors import PreparationWarning
from sween.models import Normalize
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import Kernel
from tests.engine.kernels.networks import trained_looking

CPU = torch.device("cpu")
SIZES = [(16, 32), (24, 64), (40, 32)]
"""Of images: one band, two, and two of which the second is shorter; one warp, and two."""


class Emulated:
    """A `Launch` on the CPU, for a few sizes."""

    def __init__(self, folder: Path, band: int) -> None:
        self.faults, source = 0, read_source("sween.engine", stems.FILES)
        self.kernels = {
            size: Kernel(
                folder / f"{size[0]}x{size[1]}",
                compiler(),
                source,
                [*stems.definitions(size, band), "-DENTRY=stem"],
                shared_bytes(size),
            )
            for size in SIZES
        }

    def __call__(self, size: tuple[int, int], blocks: int, arguments: Sequence[Argument]) -> None:
        self.faults += self.kernels[size](blocks, arguments)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(tmp_path_factory.mktemp("emulator"), band=4)


@pytest.fixture
def launch(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(stems, "launch", kernels)
    monkeypatch.setattr(stems, "BAND", 4)
    monkeypatch.setattr(stems, "can_compile", lambda _device, _bytes: True)
    return kernels


def _layers(**changes: Any) -> nn.Sequential:
    """The first layers of a network; `changes` replace some of them."""
    torch.manual_seed(1)
    layers = {
        "normalize": Normalize(mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.25]),
        "conv": nn.Conv2d(3, 64, 7, stride=2, padding=3),
        "relu": nn.ReLU(inplace=True),
        "pool": nn.MaxPool2d(3, stride=2, padding=1),
    }
    return nn.Sequential(*({**layers, **changes}).values()).eval()


def _stem_of(module: nn.Module) -> Stem | None:
    found = [part for part in fuse_layers(module).modules() if isinstance(part, Stem)]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("size", SIZES, ids=str)
@torch.no_grad()
def test_the_kernel(launch: Emulated, size: tuple[int, int]) -> None:
    layers = _layers()
    part = _stem_of(layers)
    assert part is not None
    images = torch.rand(2, 3, *size) * 2 - 0.5
    out = stem(images, part.affine, part.packed.half(), part.bias)
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out.float(), layers(images), rtol=2e-3, atol=2e-3)
    assert launch.faults == 0  # no races


@torch.no_grad()
def test_whole_numbers_come_out_exactly(launch: Emulated) -> None:
    """At the borders too, where an image is followed by zeros and a maximum by nothing."""
    layers = _layers(normalize=nn.Identity())
    conv = layers[1]
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    conv.weight.copy_(torch.randint(-2, 3, conv.weight.shape))
    conv.bias.copy_(torch.arange(-32, 32))
    part = _stem_of(layers)
    assert part is not None
    images = torch.randint(-3, 4, (3, 3, 40, 32)).float()
    out = stem(images, part.affine, part.packed.half(), part.bias)
    assert torch.equal(out.float(), layers(images))


@torch.no_grad()
def test_what_is_not_a_number_stays_so(launch: Emulated) -> None:
    layers = _layers()
    part = _stem_of(layers)
    assert part is not None
    for column in range(32):
        images = torch.rand(1, 3, 16, 32)
        images[0, 1, 7, column] = torch.nan
        out = stem(images, part.affine, part.packed.half(), part.bias)
        wanted = layers(images).isnan()
        assert wanted.any()
        assert out.isnan()[wanted].all()


class Wrapped(nn.Module):
    """Normalises in its own code, as wrappers do."""

    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = _layers(normalize=nn.Identity())
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(0.25))
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.compute(self, x)
        return out


def _hooked(part: nn.Module) -> nn.Module:
    part.register_forward_hook(lambda _module, _inputs, output: output + 1)
    return part


class OtherPool(nn.MaxPool2d):
    def forward(self, x: torch.Tensor) -> Any:
        return 2 * super().forward(x)


class OtherConvolution(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class WithStem(nn.Module):
    """Has a part and a tensor of names that the pass may want to use."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.Sequential(*_layers(), nn.Conv2d(64, 64, 3, padding=1)))
        self.register_buffer(f"{name}_", torch.tensor(2.0))
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = getattr(self, self.name)(x) * getattr(self, f"{self.name}_")
        return out


FUSED: dict[str, nn.Module] = {
    "stem": WithStem("stem"),
    "the pass's own name": WithStem(NAME),
    "as it is": _layers(),
    "not normalised": _layers(normalize=nn.Identity()),
    "one mean": _layers(normalize=Normalize(mean=[0.5], std=[0.25])),
    "no bias": _layers(conv=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)),
    "pairs": _layers(pool=nn.MaxPool2d((3, 3), stride=(2, 2), padding=(1, 1))),
    "wrapper": Wrapped(lambda net, x: net.layers((x - net.mean) / net.std)),
    "torch's functions": Wrapped(
        lambda net, x: net.layers(torch.div(torch.sub(x, net.mean), net.std))
    ),
    "constant read twice": Wrapped(
        lambda net, x: net.layers((x - net.mean) / net.std) * net.std
    ),
}  # fmt: skip

NOT_FUSED: dict[str, nn.Module] = {
    "no relu": _layers(relu=nn.Identity()),
    "another relu": _layers(relu=nn.LeakyReLU()),
    "another pool": _layers(pool=nn.AvgPool2d(3, stride=2, padding=1)),
    "no padding": _layers(pool=nn.MaxPool2d(3, stride=2)),
    "rounded up": _layers(pool=nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)),
    "larger pool": _layers(pool=nn.MaxPool2d(5, stride=2, padding=1)),
    "a pool's subclass": _layers(pool=OtherPool(3, stride=2, padding=1)),
    "a pool's hook": _layers(pool=_hooked(nn.MaxPool2d(3, stride=2, padding=1))),
    "5x5": _layers(conv=nn.Conv2d(3, 64, 5, stride=2, padding=2)),
    "other stride": _layers(conv=nn.Conv2d(3, 64, 7, stride=1, padding=3)),
    "other padding": _layers(conv=nn.Conv2d(3, 64, 7, stride=2, padding=2)),
    "fewer channels": _layers(conv=nn.Conv2d(3, 32, 7, stride=2, padding=3)),
    "reflected": _layers(conv=nn.Conv2d(3, 64, 7, stride=2, padding=3, padding_mode="reflect")),
    "dilated": _layers(conv=nn.Conv2d(3, 64, 7, stride=2, padding=3, dilation=2)),
    "a subclass": _layers(conv=OtherConvolution(3, 64, 7, stride=2, padding=3)),
    "a hook": _layers(conv=_hooked(nn.Conv2d(3, 64, 7, stride=2, padding=3))),
    "added": Wrapped(lambda net, x: net.layers((x + net.mean) / net.std)),
    "multiplied": Wrapped(lambda net, x: net.layers((x - net.mean) * net.std)),
    "weighted": Wrapped(lambda net, x: net.layers(torch.sub(x, net.mean, alpha=2) / net.std)),
    "other way round": Wrapped(lambda net, x: net.layers((net.mean - x) / net.std)),
    "a number for each image": Wrapped(lambda net, x: net.layers((x - x.mean()) / net.std)),
    "before": Wrapped(lambda net, x: net.layers((x.abs() - net.mean) / net.std)),
    "images used twice": Wrapped(
        lambda net, x: net.layers((x - net.mean) / net.std).mean() + x.mean()
    ),
    "rounded": Wrapped(
        lambda net, x: net.layers(torch.div(x - net.mean, net.std, rounding_mode="floor"))
    ),
    "relu used twice": Wrapped(
        lambda net, x: net.layers[3](out := net.layers[2](net.layers[1](x))).mean() + out.mean()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FUSED, *NOT_FUSED])
@torch.no_grad()
def test_layers_are_found(name: str) -> None:
    module = {**FUSED, **NOT_FUSED}[name].eval()
    images = torch.rand(2, 3, 16, 32)
    assert (_stem_of(module) is not None) == (name in FUSED)
    torch.testing.assert_close(
        fuse_layers(module)(images.clone()), module(images.clone()), rtol=1e-4, atol=1e-5
    )
    assert not any(isinstance(part, Stem) for part in module.modules())


@pytest.mark.parametrize("arch", ["imagenet-resnet18", "imagenet-resnet50"])
@torch.no_grad()
def test_a_network_by_the_kernel(launch: Emulated, arch: str) -> None:
    network = trained_looking(arch).eval()
    fused = fuse_layers(fold_batch_norm(network))
    (part,) = (part for part in fused.modules() if isinstance(part, Stem))
    images = torch.rand(2, 3, 24, 64)
    part.let_run(images, torch.float16)
    assert part.size == (24, 64)
    before, faults = images.clone(), launch.faults
    for whole in (True, False):
        ready = InArithmetic(fused, CPU, torch.float16, whole=whole)
        assert ready.takes_images
        found = ready(images)
        assert torch.equal(images, before), "other members see them too"
        torch.testing.assert_close(found, network(images), rtol=0.05, atol=0.05)
    assert launch.faults == faults


@torch.no_grad()
def test_constants_move_and_are_not_rounded() -> None:
    part = _stem_of(_layers())
    assert part is not None
    affine, bias = part.affine.clone(), part.bias.clone()
    part.half()
    assert part.packed.dtype == torch.float16
    assert torch.equal(part.affine, affine)
    assert torch.equal(part.bias, bias)
    part.to("meta")
    assert part.affine.is_meta
    assert part.bias.is_meta


@torch.no_grad()
def test_the_operation_refuses_other_images(launch: Emulated) -> None:
    part = _stem_of(_layers())
    assert part is not None
    for images in (
        torch.rand(1, 1, 16, 32), torch.rand(1, 3, 16, 32).half(), torch.rand(1, 3, 32, 16).mT
    ):  # fmt: skip
        with pytest.raises(ValueError, match="contiguous"):
            stem(images, part.affine, part.packed.half(), part.bias)


@torch.no_grad()
def test_other_sizes_and_arithmetics_run_layer_by_layer(launch: Emulated) -> None:
    images = torch.rand(1, 3, 24, 64)
    for batch, dtype in (
        (images[..., :60], torch.float16),
        (images[:, :, :22], torch.float16),
        (images, torch.float32),
        (images, torch.bfloat16),
        (images.double(), torch.float16),
        (images[:, :1], torch.float16),
        (images[0], torch.float16),
        (torch.rand(1, 3, 4, 544), torch.float16),
    ):
        part = _stem_of(_layers())
        assert part is not None
        part.let_run(batch, dtype)
        assert part.size is None
        assert not InArithmetic(part, CPU, torch.float32).takes_images
    part = _stem_of(_layers())
    assert part is not None
    part.let_run(images, torch.float16)
    other = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(part(other), _layers()(other))  # another size than it is for


@pytest.mark.parametrize("fault", ["wrong", "raises"])
@torch.no_grad()
def test_a_kernel_that_is_wrong_does_not_run(
    fault: str, launch: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(size: tuple[int, int], blocks: int, arguments: Sequence[Argument]) -> None:
        if fault == "raises":
            raise RuntimeError("no compiler")
        launch(size, blocks, arguments)
        out = arguments[-1]
        assert isinstance(out, torch.Tensor)
        out[:, 0, 0] += 0.2

    monkeypatch.setattr(stems, "launch", broken)
    part, images = _stem_of(_layers()), torch.rand(2, 3, 16, 32)
    assert part is not None
    with pytest.warns(PreparationWarning, match="no custom kernel for the first layers"):
        part.let_run(images, torch.float16)
    assert part.size is None
    torch.testing.assert_close(part(images), _layers()(images))


@torch.no_grad()
def test_torchs_compiler_takes_it_as_one_operation(launch: Emulated) -> None:
    """Without code generation: what it reads, with the shapes and types that it infers."""
    part, images = _stem_of(_layers()), torch.rand(2, 3, 16, 32)
    assert part is not None
    part.let_run(images, torch.float16)
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), part(images))


@pytest.mark.parametrize("size", [(224, 224), (128, 128), (384, 384)], ids=str)
def test_the_kernel_does_not_spill(size: tuple[int, int], tmp_path: Path) -> None:
    source = read_source("sween.engine", stems.FILES)
    assert not source_spills(tmp_path, source, stems.definitions(size))
    assert 2 * shared_bytes((224, 224)) < 227 * 1024, "two blocks on one of an H200's processors"
