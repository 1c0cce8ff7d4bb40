"""Strangers' CIFAR ResNets are recognised by what they compute, and nothing else is."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from sween.engine import Preparation, backends, prepare
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.kernels import WIDTHS, FusedResNet, is_cifar_resnet
from sween.engine.kernels.recognise import as_cifar_resnet
from sween.engine.tf32 import allow_tf32
from sween.errors import ContractWarning
from sween.models import create_model
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.strangers import ALIKE, OTHER, Function, ResNet

IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    """In evaluation mode, with statistics and parameters as training would leave them."""
    torch.manual_seed(1)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            if part.running_mean is not None and part.running_var is not None:
                part.running_mean.uniform_(-0.3, 0.3)
                part.running_var.uniform_(0.5, 2.0)
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 1.5)
                nn.init.uniform_(part.bias, -0.3, 0.3)
    return module.eval()


@pytest.mark.parametrize("name", ALIKE)
@torch.no_grad()
def test_networks_of_that_structure_are_rebuilt(name: str) -> None:
    module = _made(ALIKE[name])
    found = as_cifar_resnet(module, IMAGES)
    assert found is not None
    assert is_cifar_resnet(found, IMAGES.shape[1:], widths=WIDTHS)
    wanted = module(IMAGES)
    assert torch.allclose(found(IMAGES), wanted, atol=1e-5 * float(wanted.abs().max()) + 1e-6)


@pytest.mark.parametrize("name", OTHER)
@torch.no_grad()
def test_other_networks_are_not(name: str) -> None:
    module = _made(OTHER[name])
    module(IMAGES)  # it runs
    assert as_cifar_resnet(module, IMAGES) is None


@torch.no_grad()
def test_what_folding_leaves_is_recognised() -> None:
    module = _made(ResNet)
    assert as_cifar_resnet(fold_batch_norm(module), IMAGES) is not None


@torch.no_grad()
def test_batch_norm_in_training_mode_is_not_recognised() -> None:
    assert as_cifar_resnet(_made(ResNet).train(), IMAGES) is None


@torch.no_grad()
def test_images_of_another_size_are_not_recognised() -> None:
    assert as_cifar_resnet(_made(ALIKE["adaptive pooling"]), torch.rand(2, 3, 64, 64)) is None


@torch.no_grad()
def test_the_networks_of_the_paper_are_rebuilt_with_their_normalisation() -> None:
    model = create_model(
        "resnet20", num_classes=10, image_shape=(3, 32, 32), mean=(0.5, 0.4, 0.3), std=(0.2,) * 3
    )
    found = as_cifar_resnet(model.eval(), IMAGES)
    assert found is not None
    for name in ("mean", "std"):
        own, wanted = (each.state_dict()[f"0.{name}"] for each in (found, model))
        assert torch.allclose(own, wanted)


@pytest.mark.parametrize("name", ["published normalisation", "option A by padding", "folded"])
@torch.no_grad()
def test_the_kernels_run_a_strangers_network(emulator: Emulator, name: str) -> None:
    module = _made(ALIKE[name])
    found = as_cifar_resnet(module, IMAGES)
    assert found is not None
    outputs, wanted = FusedResNet(found, emulator)(IMAGES), module(IMAGES)
    assert float((outputs - wanted).abs().max()) < 0.02 * float(wanted.max() - wanted.min())


class _TwoFaced(nn.Module):
    """A CIFAR ResNet on two images, as when it is traced, and something else on more."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x if len(x) == 2 else x.flip(3))  # type: ignore[no-any-return]


class Tries(nn.Module):
    """Goes another way for bright images, of which there are none here."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(Exception):
            if bool(x.amax() > 100):
                x = -x
        return self.network(x)  # type: ignore[no-any-return]


class ClampsIfItCan(nn.Module):
    """Goes on without where that fails, as it does for what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)
        self.low, self.high = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            x = torch.clamp(x, self.low, self.high)
        return self.network(x)  # type: ignore[no-any-return]


class WritesToAParameter(nn.Module):
    """Which shares the memory of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nn.Parameter(x, requires_grad=False).clamp_(0, 1)
        return self.network(x)  # type: ignore[no-any-return]


class ChangesABias(nn.Module):
    """After its use."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.network.get_parameter("head.bias").data
        before = bias.clone()
        bias.add_(1)
        logits: torch.Tensor = self.network(x)
        bias.copy_(before)
        return logits


@pytest.mark.parametrize("make", [ClampsIfItCan, WritesToAParameter])
@torch.no_grad()
def test_what_the_module_does_besides_is_not_lost(make: type[nn.Module]) -> None:
    assert as_cifar_resnet(make().eval(), IMAGES) is None


@torch.no_grad()
def test_a_network_that_changes_a_weight_after_its_use_is_not() -> None:
    module = ChangesABias().eval()
    assert as_cifar_resnet(module, IMAGES) is None


class Logs(nn.Module):
    """Keeps a statistic of the images that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.brightness = x.mean()
        x.clamp(torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
        return self.network(x)  # type: ignore[no-any-return]


@torch.no_grad()
def test_writes_in_place_that_nothing_else_shows_need_no_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which takes torch's compiler."""
    monkeypatch.setattr("sween.engine.kernels.recognise._without_writes", None)
    for name in ("published normalisation", "option A by padding"):
        module = _made(ALIKE[name])
        for part in module.modules():
            if isinstance(part, nn.ReLU):
                part.inplace = True
        assert as_cifar_resnet(module, IMAGES) is not None


class RefusesBrightImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = _made(ResNet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.amax() <= 1.5)
        return self.network(x)  # type: ignore[no-any-return]


@torch.no_grad()
def test_a_network_that_refuses_bright_images_is_recognised() -> None:
    module = RefusesBrightImages().eval()
    assert backends._as_resnet(module, module, IMAGES.clamp(0, 1)) is not None


@torch.no_grad()
def test_what_no_output_depends_on_does_not_hide_the_structure() -> None:
    assert as_cifar_resnet(Logs().eval(), IMAGES) is not None


@pytest.mark.usefixtures("with_kernels")
def test_members_are_prepared_by_their_structure_and_compared_with_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "compiled", lambda module, images: module)
    preparation = Preparation("float16", compile=True)
    prepared = prepare.prepare(_made(ALIKE["published normalisation"]), preparation, IMAGES)
    assert prepared.arithmetic == "float16+fused"
    assert not prepared.shared
    other = prepare.prepare(_TwoFaced().eval(), preparation, IMAGES)
    assert other.arithmetic == "float16+compiled"
    with pytest.warns(ContractWarning, match="one at a time"):
        assert prepare.prepare(Tries().eval(), preparation, IMAGES).arithmetic == "float16"


@pytest.fixture
def _tf32() -> Iterator[None]:
    before = allow_tf32(convolutions=True, products=True)
    yield
    allow_tf32(*before)


@pytest.mark.usefixtures("_tf32")
@pytest.mark.parametrize("fails", [False, True])
@torch.no_grad()
def test_a_rebuilt_network_is_compared_without_tf32(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TF32 two ways to compute one network differ as much as two networks may."""
    network, seen = _made(ALIKE["published normalisation"]), list[tuple[bool, bool]]()

    def rebuilt(x: torch.Tensor) -> torch.Tensor:
        seen.append(_allowed())
        if fails:
            raise RuntimeError("no such kernel")
        return network(x)  # type: ignore[no-any-return]

    monkeypatch.setattr(backends, "as_cifar_resnet", lambda *_: Function(rebuilt))
    assert (backends._as_resnet(network, network, IMAGES) is None) == fails
    assert seen == [(False, False)] * (1 if fails else 3), "on other images too"
    assert _allowed() == (True, True)
    other = Function(lambda x: 1.05 * network(x))
    monkeypatch.setattr(backends, "as_cifar_resnet", lambda *_: other)
    assert backends._as_resnet(network, network, IMAGES) is None, "5% are not rounding"


def _allowed() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
