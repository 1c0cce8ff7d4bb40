"""Two 1x1 convolutions as one operation: the kernel, emulated, and what it replaces."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument, read_source
from sween.engine import added_convolutions as pairs
from sween.engine.added_convolutions import AddedConvolutions, Shape
from sween.engine.arithmetic import InArithmetic
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import fuse_layers
from sween.errors import PreparationWarning
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import Kernel
from tests.engine.kernels.networks import trained_looking

CPU = torch.device("cpu")
SHAPES = [Shape(64, 64, 128), Shape(64, 64, 256), Shape(128, 64, 256)]


class Emulated:
    """A `Launch` on the CPU with few blocks, so that each has several tiles."""

    def __init__(self, folder: Path) -> None:
        self.faults, source = 0, read_source("sween.engine", pairs.FILES)
        self.kernels = {
            shape: Kernel(
                folder / "-".join(map(str, shape)),
                compiler(),
                source,
                [*shape.definitions, "-DENTRY=added_convolutions"],
                shape.shared_bytes,
            )
            for shape in SHAPES
        }

    def blocks(self, shape: Shape, device: torch.device) -> int:
        return 2

    def __call__(self, shape: Shape, blocks: int, arguments: Sequence[Argument]) -> None:
        self.faults += self.kernels[shape](blocks, arguments)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def launch(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(pairs, "launch", kernels)
    monkeypatch.setattr(pairs, "can_compile", lambda _device, _bytes: True)
    monkeypatch.setattr(pairs, "ROWS_COMPARED", 500)  # several tiles for each of its two blocks
    return kernels


def _convolutions(shape: Shape, *, biases: tuple[bool, bool] = (True, True)) -> list[nn.Conv2d]:
    torch.manual_seed(0)
    return [
        nn.Conv2d(depth, shape.columns, 1, bias=bias)
        for depth, bias in zip(shape[:2], biases, strict=True)
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pixels", [(1, 5, 7), (3, 7, 11), (2, 16, 16)], ids=str)
@torch.no_grad()
def test_the_kernel(launch: Emulated, shape: Shape, pixels: tuple[int, int, int]) -> None:
    """Fewer rows than a tile, a last tile that is not full, and whole tiles."""
    conv, other = _convolutions(shape)
    part, (count, *size) = AddedConvolutions(conv, other), pixels
    x, y = (torch.randn(count, depth, *size) for depth in shape[:2])
    wanted = functional.relu(conv(x) + other(y))
    torch.testing.assert_close(part(x, y), wanted)
    part.by_kernel = True
    found = part(x, y)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-3, atol=3e-3)
    assert launch.faults == 0  # no races


@torch.no_grad()
def test_whole_numbers_come_out_exactly(launch: Emulated) -> None:
    for shape in SHAPES:
        conv, other = _convolutions(shape)
        for own in (conv, other):
            own.weight.copy_(torch.randint(-1, 2, own.weight.shape))
            assert own.bias is not None
            own.bias.copy_(torch.randint(-9, 9, own.bias.shape))
        part = AddedConvolutions(conv, other)
        x, y = (torch.randint(-2, 3, (2, depth, 9, 9)).float() for depth in shape[:2])
        part.by_kernel = True
        assert torch.equal(part(x, y).float(), functional.relu(conv(x) + other(y)))


@pytest.mark.parametrize("biases", [(True, False), (False, True), (False, False)])
@torch.no_grad()
def test_biases(launch: Emulated, biases: tuple[bool, bool]) -> None:
    conv, other = _convolutions(SHAPES[0], biases=biases)
    x, y = torch.randn(1, 64, 4, 4), torch.randn(1, 64, 4, 4)
    part = AddedConvolutions(conv, other)
    part.by_kernel = True
    wanted = functional.relu(conv(x) + other(y))
    torch.testing.assert_close(part(x, y).float(), wanted, rtol=2e-3, atol=3e-3)


class Block(nn.Module):
    """Two convolutions, combined by a function of this module and the batch."""

    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor], **other: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(64, 128, 1)
        self.b = nn.Conv2d(**{"in_channels": 64, "out_channels": 128, "kernel_size": 1, **other})
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.compute(self, x)
        return out


def _written_between(net: Block, x: torch.Tensor) -> torch.Tensor:
    kept = x * 2 - 1
    shortcut = net.b(kept)
    kept.relu_()
    return functional.relu(net.a(x) + shortcut)


FUSED = {
    "sum": Block(lambda net, x: functional.relu(net.a(x) + net.b(x.sin()))),
    "other order": Block(lambda net, x: functional.relu(net.b(x) + net.a(x.sin()))),
    "no bias": Block(lambda net, x: functional.relu(net.a(x) + net.b(x)), bias=False),
    "halves": Block(lambda net, x: functional.relu(
        net.a((both := torch.cat([x, x.sin()], 1))[:, :64]) + net.b(both[:, 64:])
    )),
    "cropped": Block(
        lambda net, x: functional.relu(net.a(x[:, :, 1:, 1:]) + net.b(x[:, :, :-1, :-1]))
    ),
    "every other": Block(
        lambda net, x: functional.relu(net.a(x[..., ::2, ::2]) + net.b(x[..., 1::2, 1::2]))
    ),
    "one pixel": Block(
        lambda net, x: functional.relu(net.a(x) + net.b(x.mean((2, 3), keepdim=True)))
    ),
    "one image": Block(lambda net, x: functional.relu(net.a(x) + net.b(x[:1]))),
    "row and column": Block(
        lambda net, x: functional.relu(net.a(x[:, :, :1]) + net.b(x[..., :1]))
    ),
    "shared": Block(
        lambda net, x: functional.relu(net.a(x) + net.b(x)).mean() + net.b(x.sin()).mean()
    ),
}  # fmt: skip

NOT_FUSED = {
    "strided": Block(lambda net, x: functional.relu(net.a(x[..., ::2, ::2]) + net.b(x)), stride=2),
    "3x3": Block(lambda net, x: functional.relu(net.a(x) + net.b(x)), kernel_size=3, padding=1),
    "in groups": Block(lambda net, x: functional.relu(net.a(x) + net.b(x)), groups=2),
    "fewer channels": Block(
        lambda net, x: functional.relu(net.a(x) + net.b(x[:, :32])), in_channels=32
    ),
    "shortcut used twice": Block(
        lambda net, x: functional.relu(net.a(x) + (other := net.b(x))) + other
    ),
    "no relu": Block(lambda net, x: net.a(x) + net.b(x)),
    "written between": Block(_written_between),
}


@pytest.mark.parametrize("name", [*FUSED, *NOT_FUSED])
@torch.no_grad()
def test_pairs_are_found(name: str) -> None:
    net, x = {**FUSED, **NOT_FUSED}[name].eval(), torch.randn(2, 64, 6, 6)
    fused = fuse_layers(net)
    found = [part for part in fused.modules() if isinstance(part, AddedConvolutions)]
    assert len(found) == (name in FUSED)
    torch.testing.assert_close(fused(x.clone()), net(x.clone()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
@torch.no_grad()
def test_found_pairs_by_the_kernel(launch: Emulated, name: str) -> None:
    """Of views too, whose pixels have gaps between them, and of shortcuts that are broadcast."""
    net, x = FUSED[name].eval(), torch.randn(2, 64, 6, 6)
    fused = fuse_layers(net)
    for part in fused.modules():
        if isinstance(part, AddedConvolutions):
            part.let_run(x, torch.float16)
            assert part.by_kernel
    ready = InArithmetic(fused, CPU, torch.float16, whole=True)
    torch.testing.assert_close(ready(x), net(x), rtol=0.01, atol=0.02)
    assert launch.faults == 0


@torch.no_grad()
def test_the_operation_refuses_other_tensors(launch: Emulated) -> None:
    part = AddedConvolutions(*_convolutions(SHAPES[0]))
    last = torch.channels_last
    x = torch.rand(2, 128, 4, 4).half().contiguous(memory_format=last)
    good = x[:, :64].contiguous(memory_format=last)
    for other in (x[:, 64:], good[:1], good[..., :1].clone(memory_format=last), good.float(),
                  good.clone(memory_format=torch.contiguous_format)):  # fmt: skip
        with pytest.raises(ValueError, match="channels-last and alike"):
            pairs.added_convolutions(good, other, part.packed.half(), part.bias)


@torch.no_grad()
def test_the_bias_moves_and_is_not_rounded() -> None:
    part = AddedConvolutions(*_convolutions(SHAPES[0]))
    bias = part.bias.clone()
    assert torch.equal(part.half().bias, bias)
    assert part.to("meta").bias.is_meta


@torch.no_grad()
def test_a_network_by_the_kernel(launch: Emulated) -> None:
    network = trained_looking("imagenet-resnet50").eval()
    fused = fuse_layers(fold_batch_norm(network))
    (part,) = (part for part in fused.modules() if isinstance(part, AddedConvolutions))
    assert part.shape == Shape(64, 64, 256), "of the first stage alone: others halve the size"
    images = torch.rand(2, 3, 32, 32)
    part.let_run(images, torch.float16)
    assert part.by_kernel
    faults = launch.faults
    for whole in (True, False):
        ready = InArithmetic(fused, CPU, torch.float16, whole=whole)
        torch.testing.assert_close(ready(images), network(images), rtol=0.05, atol=0.05)
    assert launch.faults == faults


@pytest.mark.parametrize("fault", ["wrong", "raises"])
@torch.no_grad()
def test_a_kernel_that_is_wrong_does_not_run(
    fault: str, launch: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Emulated):
        def __init__(self) -> None:
            pass

        def __call__(self, shape: Shape, blocks: int, arguments: Sequence[Argument]) -> None:
            if fault == "raises":
                raise RuntimeError("no compiler")
            launch(shape, blocks, arguments)
            out = arguments[4]
            assert isinstance(out, torch.Tensor)
            out[..., -1, :, 3] += 0.2

    monkeypatch.setattr(pairs, "launch", Broken())
    conv, other = _convolutions(SHAPES[0])
    part, x = AddedConvolutions(conv, other), torch.rand(2, 64, 3, 3)
    with pytest.warns(PreparationWarning, match="no custom kernel for two 1x1 convolutions"):
        part.let_run(x, torch.float16)
    assert not part.by_kernel
    torch.testing.assert_close(part(x, x), functional.relu(conv(x) + other(x)))
    part.let_run(x, torch.bfloat16)  # for which there is no kernel
    assert not part.by_kernel


@torch.no_grad()
def test_torchs_compiler_takes_it_as_one_operation(launch: Emulated) -> None:
    """Without code generation: what it reads, with the shapes and types that it infers."""
    part, x = AddedConvolutions(*_convolutions(SHAPES[0])), torch.rand(2, 64, 3, 3)
    part.let_run(x, torch.float16)
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, x), part(x, x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_does_not_spill(shape: Shape, tmp_path: Path) -> None:
    source = read_source("sween.engine", pairs.FILES)
    assert not source_spills(tmp_path, source, shape.definitions)
    assert shape.blocks_per_processor * shape.shared_bytes < 227 * 1024
