"""Layer norm: the kernel, emulated, and what it replaces."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.cuda import Argument, read_source
from sween.engine import layer_norm as subject
from sween.engine.arithmetic import InArithmetic
from sween.engine.fuse_layers import fuse_layers
from sween.engine.layer_norm import Form, KernelLayerNorm, form_for, layer_norm, suits
from sween.errors import PreparationWarning
from tests.engine.kernels.conftest import compiler, source_spills
from tests.engine.kernels.emulation import FormEmulator


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> FormEmulator:
    folder = tmp_path_factory.mktemp("emulator")
    return FormEmulator(folder, compiler(), subject.FILES, "layer_norm")


@pytest.fixture
def launch(kernels: FormEmulator, monkeypatch: pytest.MonkeyPatch) -> FormEmulator:
    monkeypatch.setattr(subject, "launch", kernels)
    monkeypatch.setattr(subject, "can_compile", lambda _device: True)
    kernels.launches = 0
    return kernels


def _norm(channels: int, **options: Any) -> nn.LayerNorm:
    torch.manual_seed(channels)
    norm = nn.LayerNorm(channels, **options).eval()
    for own in norm.parameters():
        nn.init.uniform_(own, 0.5, 1.5)
    return norm


def _rows(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2 + 1).half()


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 7, 96), {}),
        ((37, 384), {"eps": 1e-6}),
        ((2, 5, 5, 8), {"elementwise_affine": False}),
        ((9, 132), {"bias": False}),
        ((1, 1536), {}),
    ],
    ids=str,
)
@torch.no_grad()
def test_the_kernel(launch: FormEmulator, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    norm, x = _norm(shape[-1], **options), _rows(*shape)
    part = KernelLayerNorm(norm)
    out = layer_norm(x, part.affine, part.epsilon)
    torch.testing.assert_close(out.float(), norm(x.float()), rtol=1e-3, atol=1e-3)
    assert out.shape == x.shape
    assert launch.faults == 0
    rows, flat = x.flatten(0, -2), out.flatten(0, -2)
    alone = layer_norm(rows[-1:].clone(), part.affine, part.epsilon)
    assert torch.equal(alone, flat[-1:]), "whatever the other rows are"


@torch.no_grad()
def test_what_is_not_a_number_spoils_its_row_alone(launch: FormEmulator) -> None:
    part, x = KernelLayerNorm(_norm(16)), _rows(5, 16)
    x[3, 4] = torch.nan
    out = layer_norm(x, part.affine, part.epsilon)
    assert out[3].isnan().all()
    assert not out[[0, 1, 2, 4]].isnan().any()


class Sub(nn.LayerNorm):
    """Over the channels of images, by torch's function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Net(nn.Module):
    def __init__(self, compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.sub, self.compute = _norm(8), Sub(8), compute
        self.two, self.odd = nn.LayerNorm([2, 8]), nn.LayerNorm(6)
        self.weight, self.bias = (nn.Parameter(torch.rand(8)) for _ in range(2))
        self.linear = nn.Linear(8, 3)
        self.layer_norm_1, self.layer_norm_2 = _norm(8), _norm(8, eps=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.compute(self, x)
        return out


def _shared_weight(net: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = functional.layer_norm(x, (8,), net.weight) * net.weight
    return out


CASES: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], int]] = {
    "a layer": (lambda net, x: net.linear(net.norm(x)), 1),
    "the same layer twice": (lambda net, x: net.norm(net.norm(x).relu()), 1),
    "a subclass": (lambda net, x: net.sub(x.permute(0, 3, 1, 2)), 1),
    "a function": (lambda net, x: functional.layer_norm(x, (8,), net.weight, net.bias, 1e-6), 1),
    "a function by names": (
        lambda net, x: functional.layer_norm(x, normalized_shape=[8], eps=1e-6, bias=net.bias), 1
    ),
    "a weight that others read": (_shared_weight, 1),
    "modules of such names": (
        lambda net, x: functional.layer_norm(
            net.layer_norm_2(net.layer_norm_1(x).relu()).relu(), (8,)
        ),
        3,
    ),
    "a weight of a layer": (lambda net, x: net.norm(x) * net.norm.weight, 0),
    "an input by its name": (lambda net, x: net.norm(input=x), 0),
    "over two axes": (lambda net, x: net.two(x), 0),
    "six channels": (lambda net, x: net.odd(x[..., :6]), 0),
    "a weight that is computed": (lambda net, x: functional.layer_norm(x, (8,), 2 * net.weight), 0),
    "a weight of the images": (lambda net, x: functional.layer_norm(x, (8,), x[0, 0, 0]), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_networks_compute_the_same(name: str, launch: FormEmulator) -> None:
    compute, wanted = CASES[name]
    net, x = Net(compute).eval(), _rows(2, 3, 2, 8).float()
    fused = fuse_layers(net)
    found = [part for part in fused.modules() if isinstance(part, KernelLayerNorm)]
    assert len(found) == wanted
    torch.testing.assert_close(fused(x), net(x))
    for part in found:
        part.let_run(x, torch.float16)
        assert part.by_kernel
    ready = InArithmetic(fused, x.device, torch.float16, whole=True)
    torch.testing.assert_close(ready(x), net(x), rtol=2e-2, atol=2e-2)
    assert (launch.launches > wanted) == bool(wanted)


@torch.no_grad()
def test_a_kernel_that_is_wrong_is_not_used(
    launch: FormEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(form: Form, blocks: int, arguments: Sequence[Argument]) -> None:
        out = arguments[3]
        assert isinstance(out, torch.Tensor)
        out.fill_(3)

    monkeypatch.setattr(subject, "launch", wrong)
    part = KernelLayerNorm(_norm(8))
    with pytest.warns(PreparationWarning, match="no custom kernel for layer norm"):
        part.let_run(torch.zeros(1), torch.float16)
    assert not part.by_kernel
    monkeypatch.setattr(subject, "can_compile", lambda _device: False)
    part.let_run(torch.zeros(1), torch.float16)
    assert not part.by_kernel


@torch.no_grad()
def test_the_compiler_takes_it_as_it_is(launch: FormEmulator) -> None:
    part, x = KernelLayerNorm(_norm(8)).half(), _rows(4, 8)
    part.by_kernel = True
    compiled = torch.compile(part, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), part(x))
    assert launch.launches >= 2


@torch.no_grad()
def test_rows_at_any_address_are_read(launch: FormEmulator) -> None:
    part, room = KernelLayerNorm(_norm(8)), _rows(33)
    x = room[1:].view(4, 8)
    assert x.data_ptr() % 8
    out = layer_norm(x, part.affine, part.epsilon)
    torch.testing.assert_close(out, layer_norm(x.clone(), part.affine, part.epsilon))
    assert launch.faults == 0


def test_inputs_that_the_kernel_cannot_read_are_refused(launch: FormEmulator) -> None:
    part, x = KernelLayerNorm(_norm(8)), _rows(4, 8)
    for own, affine in (
        (x.float(), part.affine),
        (x.t().contiguous().t(), part.affine),
        (_rows(4, 6), part.affine),
        (x, part.affine.half()),
        (x, part.affine[:1]),
    ):
        with pytest.raises(ValueError, match="not float"):
            layer_norm(own, affine, part.epsilon)
    assert launch.launches == 0


def test_layers_with_hooks_and_subclasses_do_not_suit() -> None:
    norm = _norm(8)
    assert suits(norm)
    assert not suits(Sub(8))
    assert not suits(nn.LayerNorm(4096))
    norm.register_forward_hook(lambda *call: 2 * call[-1])
    assert not suits(norm)


@pytest.mark.parametrize("channels", [96, 192, 384, 768, 1024, 1536])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_source_compiles_without_spills(
    tmp_path: Path, channels: int, architecture: str
) -> None:
    source = read_source("sween.engine", subject.FILES)
    assert not source_spills(tmp_path, source, form_for(channels).definitions(), architecture)
