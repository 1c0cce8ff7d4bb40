"""Convolutions fused with the relus after them: the same outputs, and only where that is right."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine.arithmetic import InArithmetic
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import fuse_layers
from tests.engine.cudnn import emulate
from tests.engine.kernels.networks import trained_looking
from tests.engine.kernels.strangers import Bottleneck, PreActivation, ResNet, SqueezeExcite

CPU = torch.device("cpu")
Compute = Callable[[Any, torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """A few layers, combined by a function of this module and the batch."""

    def __init__(self, compute: Compute, **convolution: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        options = {"kernel_size": 3, "padding": 1, **convolution}
        self.a, self.b = nn.Conv2d(4, 4, **options), nn.Conv2d(4, 4, **options)
        self.relu, self.in_place = nn.ReLU(), nn.ReLU(inplace=True)
        self.gelu, self.dropout, self.identity = nn.GELU(), nn.Dropout(0.5), nn.Identity()
        self.scale = nn.Parameter(torch.rand(1, 4, 1, 1))
        self.compute = compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self, x).mean(dim=(2, 3))


class Expected(NamedTuple):
    """Calls of cuDNN in one pass: without and with a shortcut."""

    plain: int
    with_shortcut: int


def _in_place(net: Net, x: torch.Tensor) -> torch.Tensor:
    out = net.a(x)
    out += x
    return net.in_place(out)  # type: ignore[no-any-return]


def _onto_the_shortcut(net: Net, x: torch.Tensor) -> torch.Tensor:
    kept = x * 2
    total: torch.Tensor = functional.relu(kept.add_(net.a(x)))
    return total + kept  # which the sum has changed


def _input_written_later(net: Net, x: torch.Tensor) -> torch.Tensor:
    kept = x * 2 - 1
    out = net.a(kept)
    kept.relu_()
    return functional.relu(out + kept)


def _input_written_later_by_a_flag(net: Net, x: torch.Tensor) -> torch.Tensor:
    kept = x * 2 - 1
    out = net.a(kept)
    functional.relu(kept, True)
    return functional.relu(out + kept)


def _shortcut_written_between(net: Net, x: torch.Tensor) -> torch.Tensor:
    kept = x * 2 - 1
    total = net.a(x) + kept
    kept.mul_(3)
    return functional.relu(total) + kept


def _output_used_twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net.a(x)
    return functional.relu(out) + out.sigmoid()


def _sum_used_twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = net.a(x) + x
    return functional.relu(total) + total


def _relu_used_twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    out = net.relu(net.a(x))
    return net.b(out) + out  # type: ignore[no-any-return]


def _shared(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.relu(net.a(net.relu(net.a(x))))  # type: ignore[no-any-return]


def _branches(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([net.relu(net.a(x)), net.relu(net.b(x)), x], dim=1)


NETS: dict[str, tuple[Net, Expected]] = {
    "relu module": (Net(lambda net, x: net.relu(net.a(x))), Expected(1, 0)),
    "relu in place": (Net(lambda net, x: net.in_place(net.a(x))), Expected(1, 0)),
    "torch.relu": (Net(lambda net, x: torch.relu(net.a(x))), Expected(1, 0)),
    "functional relu": (Net(lambda net, x: functional.relu(net.a(x), True)), Expected(1, 0)),
    "relu method": (Net(lambda net, x: net.a(x).relu()), Expected(1, 0)),
    "relu_ method": (Net(lambda net, x: net.a(x).relu_()), Expected(1, 0)),
    "no bias": (Net(lambda net, x: net.relu(net.a(x) + x), bias=False), Expected(0, 1)),
    "sum": (Net(lambda net, x: net.relu(net.a(x) + x)), Expected(0, 1)),
    "sum reversed": (Net(lambda net, x: net.relu(x + net.a(x))), Expected(0, 1)),
    "torch.add": (Net(lambda net, x: net.relu(torch.add(x, net.a(x)))), Expected(0, 1)),
    "add method": (Net(lambda net, x: net.relu(net.a(x).add(x))), Expected(0, 1)),
    "add_ method": (Net(lambda net, x: net.relu(net.a(x).add_(x))), Expected(0, 1)),
    "sum in place": (Net(_in_place), Expected(0, 1)),
    "two convolutions": (Net(lambda net, x: net.relu(net.a(x) + net.b(x))), Expected(0, 1)),
    "dropout between": (Net(lambda net, x: net.relu(net.dropout(net.a(x)))), Expected(1, 0)),
    "identity between": (Net(lambda net, x: net.relu(net.identity(net.a(x)))), Expected(1, 0)),
    "shared convolution": (Net(_shared), Expected(2, 0)),
    "shared by a shortcut": (
        Net(lambda net, x: net.relu(net.a(x) + net.b(x)) + net.b(x).sigmoid()), Expected(0, 1)
    ),
    "its own shortcut": (
        Net(lambda net, x: net.relu(net.a(net.a(x)) + net.b(x)) + x), Expected(0, 1)
    ),
    "relu used twice": (Net(_relu_used_twice), Expected(1, 0)),
    "branches": (Net(_branches), Expected(2, 0)),
    "groups": (Net(lambda net, x: net.relu(net.a(x)), groups=2), Expected(1, 0)),
    "dilated": (Net(lambda net, x: net.relu(net.a(x) + x), dilation=2, padding=2), Expected(0, 1)),
    "strided": (Net(lambda net, x: net.relu(net.a(x) + net.b(x)), stride=2), Expected(0, 1)),
    "uneven": (
        Net(lambda net, x: net.relu(net.a(x)), kernel_size=(1, 5), padding=(0, 1), stride=(2, 1)),
        Expected(1, 0),
    ),
    # Not by cuDNN: a shortcut of another shape or type.
    "broadcast shortcut": (Net(lambda net, x: net.relu(net.a(x) + net.scale)), Expected(0, 0)),
    "other numbers": (Net(lambda net, x: net.relu(net.a(x) + x.double()).float()), Expected(0, 0)),
    # Not fused at all.
    "output used twice": (Net(_output_used_twice), Expected(0, 0)),
    "sum used twice": (Net(_sum_used_twice), Expected(0, 0)),
    "sum with itself": (Net(lambda net, x: net.relu((out := net.a(x)) + out)), Expected(0, 0)),
    "onto the shortcut": (Net(_onto_the_shortcut), Expected(0, 0)),
    "input written later": (Net(_input_written_later), Expected(0, 0)),
    "input written later by a flag": (Net(_input_written_later_by_a_flag), Expected(0, 0)),
    "shortcut written between": (Net(_shortcut_written_between), Expected(0, 0)),
    "weighted sum": (
        Net(lambda net, x: net.relu(torch.add(net.a(x), x, alpha=2))), Expected(0, 0)
    ),
    "a number": (Net(lambda net, x: net.relu(net.a(x) + 0.5)), Expected(0, 0)),
    "difference": (Net(lambda net, x: net.relu(net.a(x) - x)), Expected(0, 0)),
    "relu6": (Net(lambda net, x: functional.relu6(net.a(x))), Expected(0, 0)),
    "gelu": (Net(lambda net, x: net.gelu(net.a(x))), Expected(0, 0)),
    "leaky": (Net(lambda net, x: functional.leaky_relu(net.a(x))), Expected(0, 0)),
    "depthwise": (Net(lambda net, x: net.relu(net.a(x)), groups=4), Expected(0, 0)),
    "reflected": (
        Net(lambda net, x: net.relu(net.a(x)), padding_mode="reflect"), Expected(0, 0)
    ),
    "padding by name": (Net(lambda net, x: net.relu(net.a(x)), padding="same"), Expected(0, 0)),
    "branch on values": (
        Net(lambda net, x: net.relu(net.a(x)) if float(x.sum()) > 0 else x), Expected(0, 0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_outputs_stay_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, expected = NETS[name]
    net.eval()
    images = torch.randn(3, 4, 9, 9, generator=torch.Generator().manual_seed(1))
    wanted = net(images.clone())
    fused = fuse_layers(net)
    # Biases that are added at another place round differently.
    assert torch.allclose(fused(images.clone()), wanted, rtol=1e-6, atol=1e-6), "without cuDNN"
    emulated = emulate(monkeypatch)
    assert torch.allclose(fused(images.clone()), wanted, rtol=1e-6, atol=1e-6), "with cuDNN"
    assert Expected(emulated.plain, emulated.with_shortcut) == expected
    assert not any(isinstance(part, FusedConvolution) for part in net.modules())


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], Expected]] = {
    "resnet20": (lambda: trained_looking("resnet20"), Expected(10, 9)),
    "resnet20x2": (lambda: trained_looking("resnet20x2"), Expected(10, 9)),
    "imagenet-resnet18": (lambda: trained_looking("imagenet-resnet18"), Expected(9, 8)),
    "imagenet-resnet50": (lambda: trained_looking("imagenet-resnet50"), Expected(33, 16)),
    "locuslab": (lambda: ResNet(counts=(3, 3, 3)), Expected(10, 9)),
    "in place": (lambda: ResNet(relu=nn.ReLU(inplace=True)), Expected(4, 3)),
    "before activation": (lambda: ResNet(block=PreActivation), Expected(4, 0)),
    "bottlenecks": (lambda: ResNet(block=Bottleneck), Expected(7, 3)),
    # Its second convolution is scaled before the sum.
    "squeeze and excite": (lambda: ResNet(block=SqueezeExcite), Expected(4, 2)),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_folded_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = ARCHITECTURES[name]
    folded, images = fold_batch_norm(make().eval()), torch.rand(2, 3, 32, 32)
    wanted = folded(images)
    emulated = emulate(monkeypatch)
    torch.testing.assert_close(fuse_layers(folded)(images), wanted, rtol=1e-5, atol=1e-5)
    assert Expected(emulated.plain, emulated.with_shortcut) == expected


@torch.no_grad()
def test_layers_that_may_do_more_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    hooked = Net(lambda net, x: net.relu(net.a(x)))
    hooked.a.register_forward_hook(lambda _module, _inputs, output: output - 1)
    hooked_identity = Net(lambda net, x: net.relu(net.identity(net.a(x))))
    hooked_identity.identity.register_forward_hook(lambda _module, _inputs, output: output - 1)
    hooked_relu = Net(lambda net, x: net.relu(net.a(x)))
    hooked_relu.relu.register_forward_hook(lambda _module, _inputs, output: output - 1)
    doubled = Net(lambda net, x: net.relu(net.a(x)))
    doubled.a = Doubled(4, 4, 3)
    emulated = emulate(monkeypatch)
    for net in (hooked, hooked_identity, hooked_relu, doubled):
        images = torch.randn(2, 4, 9, 9)
        assert torch.equal(fuse_layers(net.eval())(images), net(images))
    assert (emulated.plain, emulated.with_shortcut) == (0, 0)


@torch.no_grad()
def test_a_shortcuts_bias_is_added_by_the_fused_convolution() -> None:
    folded = fold_batch_norm(trained_looking("imagenet-resnet50").eval())
    fused = fuse_layers(folded)
    biases = [part.bias is None for part in fused.modules() if isinstance(part, nn.Conv2d)]
    assert biases.count(True) == 4, "one for each stage's first block"
    assert all(part.bias is not None for part in folded.modules() if isinstance(part, nn.Conv2d))


@pytest.mark.parametrize("name", ["sum", "relu method", "strided", "broadcast shortcut"])
@torch.no_grad()
def test_torchs_compiler_takes_the_fused_convolution_as_one_operation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without code generation: what it reads, with the shapes and types that it infers."""
    net, expected = NETS[name]
    images = torch.randn(3, 4, 9, 9).to(memory_format=torch.channels_last)
    emulated = emulate(monkeypatch)
    compiled = torch.compile(fuse_layers(net.eval()), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), net(images))
    assert Expected(emulated.plain, emulated.with_shortcut) == expected


@torch.no_grad()
def test_where_cudnn_has_no_kernel_the_operations_run_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net(lambda net, x: net.relu(net.a(x) + x)).eval()
    fused, images = fuse_layers(net), torch.randn(2, 4, 9, 9)
    emulated = emulate(monkeypatch, RuntimeError("GET was unable to find an engine to execute"))
    assert torch.equal(fused(images), net(images))
    assert torch.equal(fused(images), net(images))
    assert emulated.with_shortcut == 1, "it is asked once"
    emulated.error = None
    half = InArithmetic(fused, CPU, torch.bfloat16, whole=True)
    assert torch.allclose(half(images), net(images), atol=0.05)
    assert emulated.with_shortcut == 2, "and again in another arithmetic"


@torch.no_grad()
def test_out_of_memory_is_not_a_missing_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = fuse_layers(Net(lambda net, x: net.relu(net.a(x))).eval())
    emulate(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        fused(torch.randn(2, 4, 9, 9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_in_reduced_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first convolution's input is float32, and so is a shortcut of the images themselves."""
    net = Net(lambda net, x: net.relu(net.b(net.relu(net.a(x) + x)) + net.a(x))).eval()
    images = torch.randn(2, 4, 9, 9)
    emulated = emulate(monkeypatch)
    plain, fused = (InArithmetic(part, CPU, dtype) for part in (net, fuse_layers(net)))
    assert fused(images).dtype == torch.float32
    assert torch.allclose(fused(images), plain(images), atol=0.02)
    assert emulated.with_shortcut == 2, "one in each pass: float32 is added to by itself"


def test_a_module_in_which_nothing_can_be_fused_is_returned_itself() -> None:
    for compute in (lambda net, x: net.gelu(net.a(x)), NETS["branch on values"][0].compute):
        net = Net(compute)
        assert fuse_layers(net) is net
    assert fuse_layers(uncopyable := _Uncopyable()) is uncopyable


class _Uncopyable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)

    def __deepcopy__(self, _memo: object) -> Any:
        raise TypeError("cannot be copied")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))
