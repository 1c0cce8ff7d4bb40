"""Batch norm with the sum before and the relu after it: the kernel, emulated, and what is fused."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument, read_source
from sween.engine import batch_norm_relu as subject
from sween.engine.arithmetic import InArithmetic
from sween.engine.batch_norm_relu import BatchNormRelu, add_batch_norm_relu, batch_norm_relu
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import fuse_layers
from sween.errors import PreparationWarning
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import Kernel

CPU = torch.device("cpu")


class Emulated:
    """A `Launch` on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.faults = self.launches = 0
        source = read_source("sween.engine", subject.FILES)
        self.kernels = {
            shortcut: Kernel(
                folder / str(shortcut),
                compiler(),
                source,
                [*subject.definitions(shortcut=shortcut), "-DENTRY=batch_norm_relu"],
                4,
            )
            for shortcut in (False, True)
        }

    def __call__(self, shortcut: bool, blocks: int, arguments: Sequence[Argument]) -> None:
        self.launches += 1
        self.faults += self.kernels[shortcut](blocks, arguments)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def launch(kernels: Emulated, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(subject, "launch", kernels)
    monkeypatch.setattr(subject, "can_compile", lambda _device: True)
    kernels.launches = 0
    return kernels


def _norm(channels: int, **options: Any) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, **options).eval()
    torch.manual_seed(channels)
    with torch.no_grad():
        for own in (norm.running_mean, norm.bias):
            if own is not None:
                own.normal_()
        for own in (norm.running_var, norm.weight):
            if own is not None:
                own.uniform_(0.5, 2)
    return norm


def _last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half().contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("blocks", [1, 6, 1000])
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (3, 40, 7, 7), (1, 24, 1, 1)], ids=str)
@torch.no_grad()
def test_the_kernel(
    launch: Emulated, shape: tuple[int, ...], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "BLOCKS", blocks)  # one, several, and more than there is work for
    norm = _norm(shape[1])
    affine, (x, y) = BatchNormRelu(norm).affine, (_last(*shape) for _ in range(2))
    out = batch_norm_relu(x, affine)
    torch.testing.assert_close(out.float(), norm(x.float()).relu(), rtol=2e-3, atol=2e-3)
    total, out = add_batch_norm_relu(x, y, affine)
    wanted = x.float() + y.float()
    assert torch.equal(total, wanted.half())
    torch.testing.assert_close(out.float(), norm(wanted).relu(), rtol=2e-3, atol=2e-3)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert launch.faults == 0


@torch.no_grad()
def test_what_is_not_a_number_stays_so(launch: Emulated) -> None:
    affine, x = BatchNormRelu(_norm(8)).affine, _last(2, 8, 3, 3)
    x[1, 5, 2, 0] = torch.nan
    total, out = add_batch_norm_relu(x, torch.zeros_like(x), affine)
    assert torch.equal(out.isnan(), x.isnan())
    assert torch.equal(total.isnan(), x.isnan())


class Net(nn.Module):
    """Computes something of two convolutions and a batch norm behind their sum."""

    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor], **norm: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.relu, self.compute = _norm(8, **norm), nn.ReLU(), compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.compute(self, x)
        return out


def _in_place(net: Any, x: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = net.a(x)
    total += x
    out: torch.Tensor = net.b(net.relu(net.norm(total)))
    return out + total


def _shortcut_changed(net: Any, x: torch.Tensor) -> torch.Tensor:
    other = net.b(x)
    total = net.a(x) + other
    other.mul_(2)
    out: torch.Tensor = net.relu(net.norm(total)) + other
    return out


def _read_between(net: Any, x: torch.Tensor) -> torch.Tensor:
    total = net.a(x) + x
    other = net.b(total)
    out: torch.Tensor = net.relu(net.norm(total)) + other
    return out


SUMS: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], int]] = {
    "sum": (lambda net, x: net.b(net.relu(net.norm(t := net.a(x) + x))) + t, 2),
    "torch.add": (lambda net, x: net.b(torch.relu(net.norm(torch.add(net.a(x), x)))), 2),
    "method": (lambda net, x: net.b(net.norm(net.a(x).add(x)).relu()), 2),
    "in place": (_in_place, 2),
    "no sum": (lambda net, x: net.b(functional.relu(net.norm(x))), 1),
    "a number": (lambda net, x: net.b(net.relu(net.norm(net.a(x) + 1))), 1),
    "weighted": (lambda net, x: net.relu(net.norm(torch.add(net.a(x), x, alpha=2))), 1),
    "difference": (lambda net, x: net.relu(net.norm(net.a(x) - x)), 1),
    "one pixel": (lambda net, x: net.relu(net.norm(net.a(x) + x.mean((2, 3), True))), 2),
    "changed in between": (_shortcut_changed, 1),
    "read in between": (_read_between, 1),
    "no relu": (lambda net, x: net.norm(net.a(x) + x), 0),
    "used twice": (lambda net, x: net.relu(out := net.norm(net.a(x) + x)) + out, 0),
}  # fmt: skip
"""What is computed, and the inputs of what it is fused to; 0: nothing is fused."""


def _inputs(module: nn.Module) -> int:
    """Of the one fused batch norm; 0 if there is none."""
    fused = fuse_layers(module)
    parts = dict(fused.named_modules())
    found = [
        len(node.args)
        for node in getattr(getattr(fused, "graph", None), "nodes", [])
        if node.op == "call_module" and isinstance(parts[str(node.target)], BatchNormRelu)
    ]
    return found[0] if found else 0


@pytest.mark.parametrize("kernel", [False, True], ids=["by torch", "by the kernel"])
@pytest.mark.parametrize("name", SUMS)
@torch.no_grad()
def test_what_is_fused(name: str, kernel: bool, launch: Emulated) -> None:
    compute, inputs = SUMS[name]
    module, images = Net(compute).eval(), torch.randn(2, 8, 5, 5)
    assert _inputs(module) == inputs
    fused = fuse_layers(module)
    torch.testing.assert_close(fused(images.clone()), module(images.clone()), rtol=1e-4, atol=1e-5)
    if not kernel:
        return
    for part in fused.modules():
        if isinstance(part, BatchNormRelu):
            part.let_run(images, torch.float16)
            assert part.by_kernel
    launch.launches = 0
    ready = InArithmetic(fused, CPU, torch.float16, whole=True)
    torch.testing.assert_close(ready(images), module(images), rtol=0.02, atol=0.02)
    # A shortcut of one pixel is added by torch.
    assert (launch.launches > 0) == (inputs > 0 and name != "one pixel")
    assert launch.faults == 0


@pytest.mark.parametrize(
    "changes", [{"affine": False}, {"eps": 0.1}, {"track_running_stats": False}], ids=str
)
@torch.no_grad()
def test_kinds_of_batch_norm(changes: dict[str, Any]) -> None:
    module, images = Net(SUMS["sum"][0], **changes).eval(), torch.randn(2, 8, 5, 5)
    assert (_inputs(module) > 0) == ("track_running_stats" not in changes)
    torch.testing.assert_close(fuse_layers(module)(images), module(images), rtol=1e-4, atol=1e-5)


def test_hooks_and_batch_statistics_are_left_alone() -> None:
    hooked = Net(SUMS["sum"][0]).eval()
    hooked.norm.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    assert _inputs(hooked) == 0
    training = Net(SUMS["sum"][0]).eval()
    training.norm.train()
    assert _inputs(training) == 0


@torch.no_grad()
def test_constants_move_and_are_not_rounded() -> None:
    part = BatchNormRelu(_norm(8))
    affine = part.affine.clone()
    assert torch.equal(part.half().affine, affine)
    assert part.to("meta").affine.is_meta


@torch.no_grad()
def test_the_operations_refuse_other_tensors(launch: Emulated) -> None:
    affine, x = BatchNormRelu(_norm(8)).affine, _last(2, 8, 4, 4)
    for other in (x.float(), x.contiguous(), x[:, :4], x[:, :, ::2]):
        with pytest.raises(ValueError, match="not float16"):
            batch_norm_relu(other, affine)
        with pytest.raises(ValueError, match="not float16"):
            add_batch_norm_relu(x, other, affine)
    with pytest.raises(ValueError, match="not float16"):
        batch_norm_relu(x, affine[:, :4])


@torch.no_grad()
def test_other_arithmetics_run_layer_by_layer(launch: Emulated) -> None:
    for channels, dtype in itertools.product((8, 12), (torch.float32, torch.bfloat16, torch.half)):
        part = BatchNormRelu(_norm(channels))
        part.let_run(torch.rand(1), dtype)
        assert part.by_kernel == (channels == 8 and dtype == torch.half)


@pytest.mark.parametrize("fault", ["wrong", "raises"])
@torch.no_grad()
def test_a_kernel_that_is_wrong_does_not_run(
    fault: str, launch: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(shortcut: bool, blocks: int, arguments: Sequence[Argument]) -> None:
        if fault == "raises":
            raise RuntimeError("no compiler")
        launch(shortcut, blocks, arguments)
        out = arguments[4]
        assert isinstance(out, torch.Tensor)
        out += float(shortcut)  # right without one

    monkeypatch.setattr(subject, "launch", broken)
    part = BatchNormRelu(_norm(8))
    with pytest.warns(PreparationWarning, match="no custom kernel for batch norm with relu"):
        part.let_run(torch.rand(1), torch.float16)
    assert not part.by_kernel


@torch.no_grad()
def test_torchs_compiler_takes_it_as_one_operation(launch: Emulated) -> None:
    part, (x, y) = BatchNormRelu(_norm(8)), (_last(2, 8, 4, 4) for _ in range(2))
    part.let_run(x, torch.float16)
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    for found, wanted in zip(compiled(x, y), part(x, y), strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(compiled(x)[1], part(x)[1])


@torch.no_grad()
def test_folding_comes_first() -> None:
    """Only the batch norm behind the sum is left for the kernel."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3), _norm(8), nn.ReLU(), Net(SUMS["sum"][0])).eval()
    assert sum(isinstance(part, BatchNormRelu) for part in fuse_layers(module).modules()) == 2
    fused = fuse_layers(fold_batch_norm(module))
    assert sum(isinstance(part, BatchNormRelu) for part in fused.modules()) == 1
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(fused(images), module(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shortcut", [False, True])
def test_the_kernel_does_not_spill(shortcut: bool, tmp_path: Path) -> None:
    source = read_source("sween.engine", subject.FILES)
    assert not source_spills(tmp_path, source, subject.definitions(shortcut=shortcut))
