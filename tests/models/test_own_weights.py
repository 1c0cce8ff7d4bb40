"""Weights of one's own: placed by their names, every parameter from the file, no code run."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sween.errors import BadInput, CheckpointError, ContractError
from sween.models import load_checkpoint
from sween.models.own_weights import own_network
from tests.models import factories

SHAPE = (3, 8, 8)
State = Mapping[str, torch.Tensor]


def trained() -> nn.Module:
    torch.manual_seed(4)
    network = factories.pooled(5)
    network(torch.rand(16, *SHAPE))  # for the statistics of batch norm
    return network.eval()


def renamed(prefix: str) -> Callable[[State], State]:
    return lambda state: {f"{prefix}{name}": tensor for name, tensor in state.items()}


LAYOUTS: dict[str, Callable[[State], object]] = {
    "weights alone": lambda state: state,
    "of a training script": lambda state: {"epoch": 7, "state_dict": state},
    "DataParallel": renamed("module."),
    "torch.compile": renamed("_orig_mod."),
    "a part of a larger module": renamed("model.backbone."),
    "old torch": lambda state: {k: v for k, v in state.items() if "tracked" not in k},
    "float64": lambda state: {k: v.double() if v.is_floating_point() else v
                              for k, v in state.items()},
}  # fmt: skip


def load(path: Path, factory: str, classes: int = 5) -> nn.Module:
    arch = f"tests.models.factories:{factory}"
    return own_network(path, arch, num_classes=classes, image_shape=SHAPE)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("factory", ["pooled", "behind_normalisation"])
@torch.no_grad()
def test_weights_find_their_place(factory: str, layout: str, tmp_path: Path) -> None:
    network, images = trained(), torch.rand(4, *SHAPE)
    torch.save(LAYOUTS[layout](network.state_dict()), tmp_path / "weights.pth")
    found = load(tmp_path / "weights.pth", factory)
    seen = images if factory == "pooled" else (images - factories.MEAN) / factories.STD
    assert torch.equal(found(images), network(seen))


@torch.no_grad()
def test_safetensors_and_constants_of_the_file(tmp_path: Path) -> None:
    whole = factories.behind_normalisation(5).eval()
    whole.get_buffer("0.mean").fill_(0.9)
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    images = torch.rand(4, *SHAPE)
    found = load(tmp_path / "weights.safetensors", "behind_normalisation")
    assert torch.equal(found(images), whole(images))
    with pytest.raises(CheckpointError, match="sween import"):
        load_checkpoint(tmp_path / "weights.safetensors")


def test_every_parameter_and_statistic_must_be_in_the_file(tmp_path: Path) -> None:
    for missing in ("0.weight", "1.running_mean", "4.bias"):
        state = {name: each for name, each in trained().state_dict().items() if name != missing}
        torch.save(state, tmp_path / "weights.pth")
        for factory, name in (("pooled", missing), ("behind_normalisation", f"1.{missing}")):
            with pytest.raises(CheckpointError, match=f"no {name}"):
                load(tmp_path / "weights.pth", factory)


def test_a_shared_layer_is_not_left_as_the_factory_made_it(tmp_path: Path) -> None:
    """It has two names, of which this file has one."""
    state = factories.with_shared_layer(5).state_dict()
    part = {name: tensor for name, tensor in state.items() if name.startswith("network.")}
    torch.save(part, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="no head"):
        load(tmp_path / "weights.pth", "with_shared_layer")


@pytest.mark.parametrize(
    ("factory", "classes", "error", "said"),
    [
        ("with_classes", 5, CheckpointError, "do not fit"),
        ("pooled", 6, CheckpointError, r"4.weight is \(5, 4\), not \(6, 4\)"),
        ("not_there", 5, BadInput, "not_there"),
        ("always_five", 6, ContractError, r"expected logits of shape \(2, 6\)"),
    ],
)
def test_what_does_not_fit_is_named(
    factory: str, classes: int, error: type[Exception], said: str, tmp_path: Path
) -> None:
    torch.save(trained().state_dict(), tmp_path / "weights.pth")
    with pytest.raises(error, match=said):
        load(tmp_path / "weights.pth", factory, classes)


def test_a_file_of_torch_save_is_not_a_checkpoint_yet(tmp_path: Path) -> None:
    torch.save(trained().state_dict(), tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="sween import"):
        load_checkpoint(tmp_path / "weights.pth")


def test_parameters_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    state = trained().state_dict()
    name = next(name for name in state if name.endswith("weight"))
    state[name].view(-1)[0] = float("inf")
    torch.save(state, tmp_path / "c.pth")
    with pytest.raises(CheckpointError, match="expected finite weights"):
        own_network(
            tmp_path / "c.pth", "tests.models.factories:pooled", num_classes=5, image_shape=SHAPE
        )
